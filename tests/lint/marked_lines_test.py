#!/usr/bin/env python3
"""marked_lines_test.py REPOSITORY LINTER SAMPLE: scripts/LINTER finds every marked line of tests/lint/SAMPLE and no other one, and
nothing in the repository."""
import re
import subprocess
import sys
from pathlib import Path

root = Path(sys.argv[1])
lint, sample = root / "scripts" / sys.argv[2], Path("tests/lint") / sys.argv[3]
marked = {n for n, line in enumerate((root / sample).read_text().splitlines(), 1) if line.endswith("// found")}
done = subprocess.run([lint, sample], cwd=root, capture_output=True, text=True)
found = {int(n) for n in re.findall(rf"^{re.escape(str(sample))}:(\d+): ", done.stdout, re.M)}
if done.returncode != 1 or found != marked or not marked:
    sys.exit(f"not found: {sorted(marked - found)}; found for nothing: {sorted(found - marked)}; exit {done.returncode}\n{done.stdout}")
whole = subprocess.run([lint], cwd=root, capture_output=True, text=True)
if whole.returncode != 0:
    sys.exit(whole.stdout + whole.stderr)
print(whole.stdout, end="")
