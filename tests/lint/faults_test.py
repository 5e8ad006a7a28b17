#!/usr/bin/env python3
"""faults_test.py REPOSITORY: every row of the tables of docs/faults.md names tests that exist, or says why there is none."""
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
COLUMNS = 6


def cases_of(folder):
    """Names of the doctest cases of a folder; a name may be cut into several literals."""
    names = set()
    for path in (root / "tests" / folder).glob("*_test.cc"):
        for literals in re.findall(r'TEST_CASE(?:_TEMPLATE)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', path.read_text()):
            names.add("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"'))
    return names


def problem_of(name):
    """Why `name` is no test; empty where it is one."""
    if name.startswith("tests/"):
        return "" if (root / name.split()[0]).exists() else "no such file"
    if ": " in name:
        folder, case = name.split(": ", 1)
        return "" if case in cases_of(folder) else f"no such case in tests/{folder}"
    file, _, scenario = name.partition(".")
    path = root / "tests/e2e" / f"{file}.py"
    if not path.exists():
        return "no such file in tests/e2e"
    return "" if re.search(rf"^def scenario_{re.escape(scenario)}\(", path.read_text(), re.M) else f"no such scenario in {path}"


def problems_of(text):
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        if len(cells) != COLUMNS:
            yield f"{row[:60]}: {len(cells)} columns, not {COLUMNS}"
            continue
        names = re.findall(r"`([^`]+)`", cells[-1])
        if cells[-1].startswith("not covered: "):
            continue
        if not names:
            yield f"{cells[0]}: no test, and no reason why"
        yield from (f"{cells[0]}: `{name}`: {problem}" for name in names if (problem := problem_of(name)))
    if not rows:
        yield "no table"


# The check itself: a name that is none is found.
broken = "| a | b | c | d | e | `restart.nobody` |\n| a | b | c | d | e | |\n| a | b | c | d | e | `launcher: nobody` |\n"
if len(list(problems_of(broken))) != 3:
    sys.exit(f"faults that a table may have are not found: {list(problems_of(broken))}")
found = list(problems_of((root / "docs/faults.md").read_text()))
if found:
    sys.exit("docs/faults.md: " + "\ndocs/faults.md: ".join(found))
