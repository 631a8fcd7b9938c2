#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the test cases of `meson test` runs: tally.py build/meson-logs/testlog.json...

Every line of TAP is a case. A program that printed no plan, fewer cases than planned, or failed without naming a case
(a crash, a time-out, a sanitizer's report) is a failed case too, and so is a run of no test at all. Each is named on a
line before the sum: "failed: SUITE/PROGRAM: TCASE:CASE: what it says (FILE:LINE)".
"""
import json
import re
import sys


def count(test):
    """(passed, failed, skipped) of one program."""
    passed = failed = skipped = 0
    planned = None
    name = test["name"].split(":", 1)[-1].replace(" / ", "/")
    places = re.findall(r"^not ok: (?:\.\./)*(\S+:\d+): ", test.get("stderr") or "", re.M)
    for line in (test.get("stdout") or "").splitlines():
        case = re.match(r"(not )?ok\b([^#]*)(#\s*SKIP\b)?", line, re.I)
        plan = re.fullmatch(r"1\.\.(\d+)\s*(#.*)?", line)
        if plan:
            planned = int(plan[1])
        elif case and case[3]:
            skipped += 1
        elif case and case[1]:
            failed += 1
            said = re.sub(r"^not ok \d+ - ([^\s:]+\.c:)?", "", line)
            print(f"failed: {name}: {said}" + (f" ({places.pop(0)})" if places else ""))
        elif case:
            passed += 1
    seen = passed + failed + skipped
    end = f"{test['result']}, exit status {test['returncode']}"
    if not planned or planned != seen:
        failed += max(1, (planned or 0) - seen)
        print(f"failed: {name}: {planned} cases planned, {seen} seen ({end})")
    elif test["result"] not in ("OK", "SKIP") and not failed:
        failed += 1
        print(f"failed: {name}: {end}")
    return passed, failed, skipped


def count_run(path):
    """The same of each program of one run."""
    try:
        with open(path, encoding="utf-8") as log:
            tests = [json.loads(line) for line in log if line.strip()]
    except OSError:
        tests = []
    if not tests:
        print("failed: no test was run")
    return [count(test) for test in tests] or [(0, 1, 0)]


def main():
    counts = [program for path in sys.argv[1:] for program in count_run(path)]
    passed, failed, skipped = (sum(column) for column in zip(*counts))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
