#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The manual's pages against the headers: manual.py BUILD [INSTALLED MANUALS]

Each public function has a page that shows it as its header declares it, and is found by its name; each status and flag
is in a page. Writes TAP.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ["weir.h", "sync.h", "http.h"]
cases = failed = 0


def case(name, problems):
    global cases, failed
    cases += 1
    problems = list(problems)
    print(f"{'not ok' if problems else 'ok'} {cases} - {name}")
    for problem in problems:
        print(f"# {problem}", file=sys.stderr)
    failed += bool(problems)


def squeeze(text):
    return re.sub(r"\s+", " ", text).strip()


def declared():
    """name: declaration, of every function that the headers show."""
    found = {}
    for header in HEADERS:
        text = (ROOT / "include/weir" / header).read_text()
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        for declaration in re.findall(r"^WEIR_API\s+([^;{]*?\([^;{]*\));", text, flags=re.S | re.M):
            name = re.search(r"(\w+)\s*\(", declaration)[1]
            if not name.endswith("_"):
                found[name] = squeeze(declaration) + ";"
    return found


def shown(page):
    """name: declaration, of every function in a page's synopsis."""
    synopsis = page.split("# SYNOPSIS")[1].split("\n# ")[0] if "# SYNOPSIS" in page else ""
    found = {}
    for block in re.findall(r"```\n(.*?)```", synopsis, flags=re.S):
        for line in block.split(";\n"):
            match = re.match(r"(?!typedef)[^(]*?(\w+)\(.*\)$", squeeze(line))
            if match:
                found[match[1]] = squeeze(line) + ";"
    return found


def fields(headers, struct):
    """The members of a struct, but for its size and its reserve."""
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", headers, flags=re.S)[1]
    body = re.sub(r"/\*.*?\*/", " ", body, flags=re.S)
    names = [re.sub(r"\[.*", "", re.sub(r"\(\*(\w+)\)\(.*", r"\1", line.strip()).split()[-1].lstrip("*"))
             for line in body.split(";") if line.strip()]
    return [name for name in names if name not in ("size", "reserved")]


def main():
    build = pathlib.Path(sys.argv[1])
    pages = {path.name[:-4]: path.read_text() for path in sorted((ROOT / "docs/man").glob("*.scd"))}
    functions = declared()
    of = {}
    for page, text in pages.items():
        for name, line in shown(text).items():
            of[name] = (page, line)
    case("the headers declare functions", [] if len(functions) > 20 else [f"{len(functions)} found"])
    case("every function has a page", (f"{name} has none" for name in functions if name not in of))
    case("pages show what the headers declare",
         (f"{page}: {line}\n#   header: {functions.get(name, 'no such function')}"
          for name, (page, line) in of.items() if functions.get(name) != line))
    everything = "\n".join(pages.values())
    headers = "\n".join((ROOT / "include/weir" / header).read_text() for header in HEADERS)
    codes = re.findall(r"X\((WEIR_\w+), (-?\d+), \"([^\"]*)\"", headers)
    status = squeeze(pages["weir_strerror.3"])
    case("the statuses and their texts", (
        f"{name} {number} \"{text}\" is not in weir_strerror.3" for name, number, text in codes
        if not name.startswith("WEIR_HTTP_") and f"*{name}* :  {number} :  {text}".replace("  ", " ") not in
        status.replace(":[", ":").replace("  ", " ")))
    flags = re.findall(r"^#define (WEIR_[A-Z]+) \d+u ", headers, flags=re.M)
    case("the flags of a result", (f"{flag} is in no page" for flag in flags if f"*{flag}*" not in everything))
    members = {"weir_options": "weir_open.3", "weir_policy": "weir_policy_add.3", "weir_result": "weir_take.3",
               "weir_sync_options": "weir_sync_start.3"}
    case("the members of options and results", (
        f"{struct}.{member} is not in {page}" for struct, page in members.items()
        for member in fields(headers, struct) if f"_{member}_" not in pages[page]))
    case("whom a page names as related exists", (
        f"{page}: {name}({section})" for page, text in pages.items()
        for name, section in re.findall(r"\*(weir\w*)\*\((\d)\)", text)
        if f"{name}.{section}" not in pages and name not in functions))
    example = re.findall(r"```\n(#include.*?)```", pages["weir.7"], flags=re.S)
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "example.c")
        source.write_text(example[0] if example else "")
        run = subprocess.run(
            ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "include"), str(source), "-o",
             f"{scratch}/example", "-L", str(build / "lib"), "-lweir", f"-Wl,-rpath,{build / 'lib'}"],
            capture_output=True, text=True, check=False)
        said = run.stderr
        if run.returncode == 0:
            said = subprocess.run([f"{scratch}/example"], capture_output=True, text=True, check=False).stdout
        case("weir(7)'s example runs", [] if said.split("\n")[:4] == ["allowed"] * 3 + ["denied: over the limit"]
             else [said])
    if len(sys.argv) > 2:
        installed(pathlib.Path(sys.argv[2]), functions, pages)
    print(f"1..{cases}")
    return failed != 0


def installed(manuals, functions, pages):
    have = {path.name: path for path in manuals.glob("man?/*")}
    case("every page is installed", (page for page in pages if page not in have))
    case("every function is found by its name", (name for name in functions if f"{name}.3" not in have))
    case("what points elsewhere points at a page", (
        name for name, path in have.items()
        for to in re.findall(r"^\.so (.*)", path.read_text()) if not (manuals / to).is_file()))


sys.exit(main())
