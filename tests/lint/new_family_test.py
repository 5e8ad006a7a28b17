#!/usr/bin/env python3
"""new_family_test.py REPOSITORY: every hunk of the diffs in docs/new_family.md stands in the file that it names."""
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
page = (root / "docs/new_family.md").read_text()
named = set()
for block in re.findall(r"^```diff\n(.*?)^```", page, re.M | re.S):
    first, _, rest = block.partition("\n")
    name = first.removeprefix("+++ ")
    named.add(name)
    text = (root / name).read_text()
    for hunk in rest.split("@@\n"):
        lines = hunk.splitlines()
        if not lines or any(not line.startswith("+") for line in lines):
            sys.exit(f"docs/new_family.md: of {name}, not only lines that are added:\n{hunk}")
        added = "\n".join(line[1:] for line in lines)
        if added in text:
            continue
        missing = [line for line in added.splitlines() if line not in text.splitlines()]
        sys.exit(f"docs/new_family.md: not in {name} as it is written there: {missing[:3] or 'the order of lines'}")
if len(named) != 4:
    sys.exit(f"docs/new_family.md: diffs of {sorted(named)}, and four files are wanted")
print(f"docs/new_family.md is true of {', '.join(sorted(named))}")
