#!/usr/bin/env python3
"""documents_test.py REPOSITORY PROGRAMS: what documents name exists: files and headings of links, options of commands, keys of the
config; README.md's config is valid, also with what its commands change."""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

root, programs = Path(sys.argv[1]), Path(sys.argv[2])
SKIPPED = {"CHANGELOG.md"}  # also names what there was
FOLDERS_BESIDE = {"tests/data", "build"}
OTHER_NAMES = {"outer.log", "outer.error", "outer.own"}  # a file of a run, and tensors of a checkpoint
COMMAND = re.compile(r"(?<![\w/.-])(sortie(?:-train)?) ([a-z][a-z-]*)((?: [a-z][a-z-]*)?)([^`\n\"|#;]*)")


def pages():
    for path in sorted(root.rglob("*.md")):
        name = str(path.relative_to(root))
        if name not in SKIPPED and not any(name.startswith(folder + "/") for folder in FOLDERS_BESIDE):
            yield name, path.read_text()


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors_of(text):
    """As GitHub makes them of headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_blocks(text), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(next(name for number in range(100) if (name := anchor + (f"-{number}" if number else "")) not in found))
    return found


def broken_links(name, text):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (root / name).parent / path if path else root / name
        if not target.exists():
            yield f"{name}: the link {link}: no such file"
        elif anchor and anchor not in anchors_of(target.read_text()):
            yield f"{name}: the link {link}: no such heading"


helps = {}


def options_of(verb):
    if verb not in helps:
        program, *words = verb.split()
        done = subprocess.run([programs / program, *words, "--help"], capture_output=True, text=True)
        helps[verb] = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout)) if done.returncode == 0 else None
    return helps[verb]


def unknown_options(name, text):
    for program, verb, second, rest in COMMAND.findall(text):
        verbs = [f"{program} {verb}{second}", f"{program} {verb}"] if second else [f"{program} {verb}"]
        known = next((options for one in verbs if (options := options_of(one)) is not None), None)
        if known is None:
            continue  # "sortie starts", not a command
        for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", re.split(r" -- | && |\)", rest)[0]):
            if option not in known and not (verb == "push" and option == "--copy"):  # clush's, in a comparison
                yield f"{name}: {program} {verb}{second}: it has no {option}"


def keys_of_the_config():
    keys, section = set(), ""
    for line in (root / "docs/config.md").read_text().splitlines():
        if head := re.match(r"## \[(.*)\]", line):
            section = head[1]
            keys.add(section)
        elif key := re.match(r"\| `(\w+)`", line):
            keys.add(f"{section}.{key[1]}")
    return keys


def unknown_keys(name, text, keys):
    tables = {key.split(".")[0] for key in keys}
    for key in re.findall(r"`((?:" + "|".join(sorted(tables)) + r")(?:\.[a-z][a-z0-9_]*)+)(?= =|`)", text):
        known = any(".".join(key.split(".")[:parts]) in keys for parts in range(2, key.count(".") + 2))
        if not known and key not in OTHER_NAMES and not key.endswith((".h", ".cc", ".cmake")):
            yield f"{name}: `{key}` is no key of the config"


def sortie(*arguments):
    environment = os.environ | {"SORTIE_USER_CONFIG": "none"}
    return subprocess.run([programs / "sortie", *arguments], capture_output=True, text=True, env=environment)


def problems_of_readme(folder):
    text = (root / "README.md").read_text()
    config = folder / "job.toml"
    config.write_text(re.search(r"^```toml\n(.*?)^```", text, re.M | re.S)[1])
    commands = re.findall(r"^sortie (?:plan|check|run) job\.toml.*", text, re.M)
    if len(commands) < 3:
        yield "README.md: where are its commands for job.toml?"
    for command in commands:
        words = shlex.split(command, comments=True)
        done = sortie("plan", str(config), *words[3:])
        if done.returncode != 0:
            yield f"README.md: {command}: {done.stderr}"


def main():
    keys = keys_of_the_config()
    problems = []
    for name, text in pages():
        problems += [*broken_links(name, text), *unknown_options(name, text), *unknown_keys(name, text, keys)]
    with tempfile.TemporaryDirectory() as folder:
        problems += problems_of_readme(Path(folder))
    if problems:
        sys.exit("\n".join(problems))
    print(f"documents are true of what they name; {len(helps)} verbs, {len(keys)} keys")


if __name__ == "__main__":
    main()
