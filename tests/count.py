#!/usr/bin/python3
"""Counts what ran, from CTest's log (Testing/Temporary/LastTest.log): one line a suite, then the sums.

CTest knows programs only; what people want to know is how many tests there were, and that no suite was empty. So
Criterion's own synthesis is read. A program without one (plain_*, fuzz_*) is one test. A suite without a single test, or a
leak that LeakSanitizer reports (Criterion passes such a test), is a failure.

The log has all that a program said, but not how it ended; that is in the JUnit file (ctest --output-junit).

usage: count.py LOG JUNIT STEP     prints a line for each suite, last "PASSED FAILED SKIPPED", for tests/run.sh
"""

import re
import sys
import xml.etree.ElementTree

BEGIN = re.compile(r"^\d+/\d+ Test: (\S+)$")
ONE_TEST = re.compile(r"\.(plain|fuzz)_")
SYNTHESIS = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def outputs(path):
    """{suite: lines that its program said}."""
    bodies, body = {}, []
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            line = COLOUR.sub("", line.rstrip("\n"))
            begin = BEGIN.match(line)
            if begin:
                body = bodies.setdefault(begin.group(1), [])
            else:
                body.append(line)
    return bodies


def verdicts(path):
    """(suite, passed | failed | skipped) in the order of the tests."""
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None and "SKIP_RETURN_CODE" in skipped.get("message", ""):
            yield case.get("name"), "skipped"
        else:
            yield case.get("name"), "passed" if case.get("status") == "run" else "failed"


def count(name, body, verdict):
    """(passed, failed, skipped, remark) of one suite."""
    synthesis = [match for match in map(SYNTHESIS.search, body) if match]
    tested, passing, failing, crashing = (int(text) for text in synthesis[-1].groups()) if synthesis else (0, 0, 0, 0)
    if verdict == "skipped":
        return passing, 0, max(1, tested - passing), "skipped"
    if any("ERROR: LeakSanitizer" in line for line in body):
        return passing, max(1, failing + crashing), 0, "leaks memory"
    if synthesis and tested == 0:
        return 0, 1, 0, "has no tests"
    if verdict != "passed":
        return passing, max(1, failing + crashing), 0, "fails" if synthesis or ONE_TEST.search(name) else "ended before its last test"
    if synthesis:
        return passing, failing + crashing, tested - passing - failing - crashing, ""
    if ONE_TEST.search(name):
        return 1, 0, 0, ""
    return 0, 1, 0, "did not say what it tested"


def main():
    """Print the counts; what is wrong is said in words, tests/run.sh decides by the last line."""
    log, junit, step = sys.argv[1:4]
    bodies = outputs(log)
    found = [(name, *count(name, bodies.get(name, []), verdict)) for name, verdict in verdicts(junit)]
    for name, passed, failed, skipped, remark in found:
        print(f"{step}: {name}: {passed} passed, {failed} failed, {skipped} skipped{': ' if remark else ''}{remark}")
    print(*(sum(row[column] for row in found) for column in (1, 2, 3)))


if __name__ == "__main__":
    main()
