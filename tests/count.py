#!/usr/bin/python3
"""Counts what ran, from CTest's log (Testing/Temporary/LastTest.log): one line a suite, then the sums.

CTest knows programs only; what people want to know is how many tests there were, and that no suite was empty. So
Criterion's own synthesis is read. A program without one (plain_*) is one test. A suite without a single test, or a
leak that LeakSanitizer reports (Criterion passes such a test), is a failure.

usage: count.py LOG NAME     prints `NAME: suite ...` lines and last "PASSED FAILED SKIPPED" for tests/run.sh
"""

import re
import sys

BEGIN = re.compile(r"^\d+/\d+ Test(?:ing)?: (\S+)$")
END = re.compile(r"^Test (Passed|Failed|Skipped|Not Run|Timeout)|^\*+(Exception|Skipped)|^Test (?:time|timeout)")
SYNTHESIS = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def sections(lines):
    """(suite, lines of its output, CTest's verdict) for each program of the log."""
    name, body, verdict = None, [], ""
    for line in lines:
        line = COLOUR.sub("", line.rstrip("\n"))
        begin = BEGIN.match(line)
        if begin:
            if name:
                yield name, body, verdict
            name, body, verdict = begin.group(1), [], ""
        elif name and re.match(r"^Test (Passed|Failed|Skipped)\.?$", line):
            verdict = line.rstrip(".").split()[1]
        elif name:
            body.append(line)
    if name:
        yield name, body, verdict


def count(name, body, verdict):
    """(passed, failed, skipped, remark) of one suite."""
    synthesis = [match for match in map(SYNTHESIS.search, body) if match]
    tested, passing, failing, crashing = (int(text) for text in synthesis[-1].groups()) if synthesis else (0, 0, 0, 0)
    if verdict == "Skipped":
        return passing, 0, max(1, tested - passing), "skipped"
    if any("ERROR: LeakSanitizer" in line for line in body):
        return passing, max(1, failing + crashing), 0, "leaks memory"
    if synthesis and tested == 0:
        return 0, 1, 0, "has no tests"
    if verdict != "Passed":
        return passing, max(1, failing + crashing), 0, "fails" if synthesis else "ended before its last test"
    if synthesis:
        return passing, failing + crashing, tested - passing - failing - crashing, ""
    if ".plain_" in name:
        return 1, 0, 0, ""
    return 0, 1, 0, "did not say what it tested"


def main():
    """Print the counts; what is wrong is said in words, tests/run.sh decides by the last line."""
    path, title = sys.argv[1:3]
    with open(path, encoding="utf-8", errors="replace") as log:
        found = [(name, *count(name, body, verdict)) for name, body, verdict in sections(log)]
    for name, passed, failed, skipped, remark in found:
        print(f"{title}: {name}: {passed} passed, {failed} failed, {skipped} skipped{': ' if remark else ''}{remark}")
    print(*(sum(row[column] for row in found) for column in (1, 2, 3)))


if __name__ == "__main__":
    main()
