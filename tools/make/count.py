"""Adds up pytest's reports and prints one closing line; exits with 1 if anything failed."""

import sys
import xml.etree.ElementTree as ET


def main(failed: str, *reports: str) -> int:
    """Counts the tests of the reports."""
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for report in reports:
        for suite in ET.parse(report).getroot().iter("testsuite"):
            for name in totals:
                totals[name] += int(suite.get(name, 0))
    bad = totals["failures"] + totals["errors"]
    passed = totals["tests"] - bad - totals["skipped"]
    print(f"\n{passed} passed, {bad} failed, {totals['skipped']} skipped")
    return 1 if bad or failed != "0" or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
