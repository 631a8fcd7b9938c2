#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The house rules that no compiler knows: rules.py FILE...

Sizes, file headers, atomics with their order spelled out, and who may include or call what (CONTRIBUTING.md).
"""
import re
import sys

FILE_LINES = 800
FUNCTION_LINES = 60
COLUMNS = 120

IMPLICIT_ORDER = re.compile(
    r"\b(atomic_(?:load|store|exchange|compare_exchange_(?:strong|weak)|fetch_(?:add|sub|or|xor|and)"
    r"|flag_(?:test_and_set|clear))|__sync_\w+)\s*\(")
# No other builtin swaps 16 bytes without libatomic; it is a full barrier, and lib/atomic.h says so.
KNOWN_ORDER = {("lib/atomic.h", "__sync_val_compare_and_swap")}
PRINTS_OR_HANDLES = re.compile(r"\b((?:v?f?printf|f?puts|putchar|perror|signal|sigaction|atexit|abort|exit)\s*\()")
FORKS = re.compile(r"=\s*(?:process_)?fork\s*\(\)")
NOT_IN_PUBLIC = re.compile(r"#\s*include\s*[<\"](uv\.h|uv/|hiredis|async\.h)")
NOT_IN_CORE = re.compile(r"#\s*include\s*[<\"](uv\.h|uv/|hiredis|async\.h|sync/|weir/sync\.h)")


def without_comments(text):
    """The same lines with comments and the contents of strings blanked."""
    token = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def functions(lines):
    """(first line, name, length) of every function: its brace stands on a line of its own, in the first column."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{" and start is None:
            start = number
            while start > 1 and lines[start - 2].strip() and lines[start - 2][0] not in "}#;":
                start -= 1
        elif line.startswith("}") and start is not None:
            name = re.search(r"(\w+)\s*\(", " ".join(lines[start - 1:number]))
            yield start, name[1] if name else "?", number - start + 1
            start = None


def asserted_by_both(code):
    """Lines with an assertion between a fork and the child's branch. Check locks in it, and what another thread has
    locked is locked for ever in the child."""
    forked = False
    for number, line in enumerate(code, 1):
        if forked and "ck_assert" in line:
            yield number
        forked = FORKS.search(line) or (forked and "== 0" not in line and not line.startswith("}"))


def complaints(path, text):
    lines = text.split("\n")
    code = without_comments(text).split("\n")
    library = path.startswith(("lib/", "sync/", "include/"))

    if lines[0] != "/* SPDX-License-Identifier: MIT */" or not lines[1].startswith("/*"):
        yield 1, "starts with the licence's line, then a comment: what it owns and what it must not know"
    if len(lines) - 1 > FILE_LINES:
        yield FILE_LINES + 1, f"{len(lines) - 1} lines in a file, {FILE_LINES} at most"
    for start, name, length in functions(code):
        if length > FUNCTION_LINES:
            yield start, f"{name} has {length} lines, {FUNCTION_LINES} at most"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield number, f"{len(line)} columns, {COLUMNS} at most"
        if "\t" in line or line.endswith(" "):
            yield number, "a tab or a trailing blank"
    for number, line in enumerate(code, 1):
        found = IMPLICIT_ORDER.search(line)
        if found and (path, found[1]) not in KNOWN_ORDER:
            yield number, f"{found[1]}: say the memory order"
        found = PRINTS_OR_HANDLES.search(line)
        if found and library:
            yield number, f"{found[1]}): the library does not print, end the process or handle signals"
    for number in asserted_by_both(code):
        yield number, "an assertion in a child of fork: after the child's branch it is the parent's alone"
    foreign = {"lib": NOT_IN_CORE, "include": NOT_IN_PUBLIC}.get(path.split("/")[0])
    for number, line in enumerate(lines if foreign else [], 1):
        found = foreign.match(line)
        if found:
            yield number, f"{found[1]} is not for this folder"


def main():
    bad = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            for number, what in complaints(path, file.read()):
                print(f"{path}:{number}: {what}")
                bad += 1
    print(f"{len(sys.argv) - 1} files, {bad} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
