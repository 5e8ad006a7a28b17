"""Every command that Sortie prints for a user to copy works: those of the quickstart and of fine-tuning, at the end of runs, after plan,
in the README."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness import BUILD, ROOT, SORTIE, check, equal, run_to_end

FINETUNE_EXAMPLES = ["freeze", "groups", "lora", "chat"]
SHORT = ["--set", "trainer.train_iterations=60", "--set", "trainer.save_interval=20", "--set", "trainer.eval_interval=30",
         "--set", "runner.grace=1s"]


class Newcomer:
    """A user in the project's folder, with a new state folder."""

    def __init__(self):
        self.state = Path(tempfile.mkdtemp(prefix="sortie-e2e-"))
        self.environment = {**os.environ, "XDG_STATE_HOME": str(self.state), "SORTIE_BUILD": str(BUILD)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.state, ignore_errors=True)

    def call(self, *argv, seconds=300):
        return run_to_end(*argv, seconds=seconds, cwd=ROOT, env=self.environment,
                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def good(self, *argv, code=0, seconds=300):
        done = self.call(*argv, seconds=seconds)
        equal(done.returncode, code, f"exit code of {' '.join(str(word) for word in argv)} ({done.stdout[-3000:]})")
        return done.stdout

    def at_terminal(self, *argv, code=0):
        """Returns what the command shows on a terminal."""
        words = shlex.join(str(word) for word in argv)
        return self.good("script", "-qec", words, "/dev/null", code=code).replace("\r\n", "\n")

    def works(self, lines):
        check(lines, "no command was printed")
        for line in lines:
            self.good("bash", "-c", line)


def after_headings(text, heading):
    """Returns the commands below every such heading, with the comments after them."""
    return [line.strip() for below in text.split(heading)[1:] for line in below.split("\n\n")[0].splitlines() if line.strip()]


def next_steps(text):
    """Returns the lines below "next:"."""
    return [line.strip() for line in re.search(r"^next:\n((?:  .*\n?)+)", text, re.M).group(1).splitlines()]


def scenario_quickstart_and_finetune(bed):
    with Newcomer() as person:
        text = person.good("scripts/quickstart", *SHORT, seconds=500)
        commands = after_headings(text, "== next\n")
        check(len(commands) >= 6, commands)
        person.works(commands)
        person.works(next_steps(text))
        text = person.good("scripts/finetune", "--", *SHORT, "--set", "trainer.train_iterations=80", seconds=900)
        commands = after_headings(text, "== next\n")
        check(len(commands) >= 2 * len(FINETUNE_EXAMPLES), commands)
        for example in FINETUNE_EXAMPLES:
            check(any(f"/finetune/{example}-" in command for command in commands), f"no command after {example}: {commands}")
        person.works(commands)


def scenario_the_quickstarts_config_is_whole(bed):
    """configs/quickstart.toml is complete: the README and the first example of `sortie --help` refer to it."""
    with Newcomer() as person:
        text = person.at_terminal(SORTIE, "plan", "configs/quickstart.toml")
        equal([shlex.split(line)[1:] for line in next_steps(text)],
              [["check", "configs/quickstart.toml"], ["run", "configs/quickstart.toml"]], "words after plan")


def scenario_the_commands_after_plan_start_the_planned_job(bed):
    """With every option that changes the job, and with blanks in its paths."""
    with Newcomer() as person:
        job, groups, ssh_config = (person.state / name for name in ("my job.toml", "my groups.toml", "my ssh config"))
        job.write_text('[runner]\ngrace = "1s"\nprogram = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE on $SORTIE_HOST: $A"]\n')
        groups.write_text('all = "h[01-04]"\n')
        shutil.copy(bed.ssh_config, ssh_config)
        options = ["--groups", groups, "--hosts", "@all", "--exclude", "h[03-04]", "--slots", "3", "--ssh-config", ssh_config,
                   "--set", "runner.mpi=off", "--set", 'runner.env={A = "a b"}']
        program = ["--", "sh", "-c", "echo other $RANK of $WORLD_SIZE on $SORTIE_HOST: $A"]
        for words, shown in ([*options], "rank"), ([*options, *program], "other"):
            lines = next_steps(person.at_terminal(SORTIE, "plan", job, *words))
            equal([shlex.split(line)[1] for line in lines], ["check", "run"], "verbs after plan")
            checked = person.call("bash", "-c", lines[0])
            check(checked.returncode in (0, 1), f"exit code {checked.returncode} of {lines[0]}: {checked.stdout[-3000:]}")
            ran = person.good("bash", "-c", lines[1])
            equal(sorted(re.findall(rf"{shown} \d of \d on h\d+: .*", ran)),
                  [f"{shown} {rank} of 6 on h0{1 + rank // 3}: a b" for rank in range(6)], f"ranks of {lines[1]}")


def scenario_end_of_runs(bed):
    with Newcomer() as person:
        good = person.good(SORTIE, "run", "--set", "runner.mpi=off", "--", "true")
        person.works(next_steps(good))
        # What a program means by a code of its own is unknown to Sortie.
        for command, code, verbs in (("exit 7", 7, ["report", "logs"]), ("kill -9 $$", 137, ["report", "logs", "explain"])):
            bad = person.good(SORTIE, "run", "--set", "runner.mpi=off", "--", "sh", "-c", command, code=code)
            steps = next_steps(bad)
            equal([line.split()[1] for line in steps], verbs, f"verbs after a run that failed with {code}")
            person.works(steps)
        started = person.good(SORTIE, "run", "--detach", "--set", "runner.mpi=off", "--set", "runner.grace=1s", "--", "sleep", "100")
        commands = [re.split(r"   +", line.strip())[0] for line in started.splitlines() if line.startswith("  ")]
        equal([line.split()[1] for line in commands], ["attach", "status", "stop"], "verbs after --detach")
        person.works(commands[1:])
        person.good("bash", "-c", commands[0], code=143)  # the run was stopped


def scenario_a_config_of_ones_own(bed):
    with Newcomer() as person:
        job = person.state / "job.toml"
        job.write_text(person.good(SORTIE, "config", "init"))
        person.good(SORTIE, "config", "show", job)
        person.good(SORTIE, "plan", job, "--set", 'data.data_prefixes=["/d/t"]', "--hosts", "gpu[01-04]")
        # What `config init` prints at a terminal works once the file names data, as its user has to do.
        mine = person.state / "my job.toml"
        steps = next_steps(person.at_terminal("bash", "-c", f"{SORTIE} config init > {shlex.quote(str(mine))}"))
        equal([shlex.split(line)[1:] for line in steps], [["config", "show", "FILE", "--origin"], ["plan", "FILE"]],
              "words after config init")
        text = mine.read_text()
        check("\ndata_prefixes = []\n" in text, text)
        mine.write_text(text.replace("\ndata_prefixes = []\n", '\ndata_prefixes = ["/d/t"]\n'))
        person.works([line.replace(" FILE", f" {shlex.quote(str(mine))}") for line in steps])


def commands_in(path):
    """Yields the commands in a text: in backticks, or on a separate line, as in examples."""
    text = path.read_text(errors="replace")
    if path.suffix in (".cc", ".h"):
        text = re.sub(r'"\s*\n\s*"', "", text)  # literals that the compiler joins
    yield from re.findall(r"`(sortie(?:-train)? [^`\n]+)`", text)
    if path.suffix in (".md", ".cc") or path.parent.name in ("configs", "scripts"):
        yield from re.findall(r"^#?\s*(?:\$ |\$bin/)?(sortie(?:-train)? [a-z].*)$", text, re.M)


class Help:
    """Texts of `--help` of the programs and their verbs."""

    def __init__(self):
        self.texts = {}

    def of(self, program, *verb):
        if (program, *verb) not in self.texts:
            done = run_to_end(BUILD / "bin" / program, *verb, "--help")
            self.texts[(program, *verb)] = done.stdout if done.returncode == 0 else ""
        return self.texts[(program, *verb)]

    def verbs_below(self, program, *verb):
        return set(re.findall(r"^  ([a-z][a-z-]*) ", self.of(program, *verb), re.M))

    def fault(self, command):
        plain = re.sub(r"\{\d*\}", "", command.replace("\\n", " "))  # placeholders in messages
        words = re.split(r"\s+(?:#|  )|\s--\s", plain)[0].split()
        program, verb = words[0], []
        while len(words) > len(verb) + 1 and words[len(verb) + 1] in self.verbs_below(program, *verb):
            verb.append(words[len(verb) + 1])
        if not verb:
            return "" if not re.match(r"[a-z]", words[1]) else f"{words[1]} is no verb"
        known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", self.of(program, *verb)))
        odd = [word for word in words if re.match(r"--?[a-z]", word) and re.match(r"--?[a-zA-Z][\w-]*", word).group() not in known]
        return f"no option {' '.join(odd)}" if odd else ""


def scenario_commands_in_texts_exist(bed):
    """Commands in README, docs, help, messages, configs and scripts use only verbs and options that exist."""
    help = Help()
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("configs/*"), ROOT / "scripts/quickstart", ROOT / "scripts/finetune",
             *(path for folder in ("common", "launcher", "runner", "trainer") for path in (ROOT / folder).rglob("*")
               if path.suffix in (".md", ".cc", ".h"))]
    faults, seen = [], 0
    for path in files:
        for command in commands_in(path):
            seen += 1
            if fault := help.fault(command):
                faults.append(f"{path.relative_to(ROOT)}: {command[:120]}: {fault}")
    check(seen > 150, f"only {seen} commands were found")
    check(not faults, "\n".join(faults))


def scenario_configs_in_texts_can_be_planned(bed):
    """Every config, or part of a config, in the README and the docs."""
    blocks = [(path.name, block) for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
              for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.M | re.S)]
    check(len(blocks) >= 8, f"only {len(blocks)} configs were found")
    with Newcomer() as person:
        job = person.state / "shown.toml"
        for name, block in blocks:
            print(name, flush=True)
            job.write_text(block)
            data = [] if "data_prefixes" in block else ["--set", 'data.data_prefixes=["/data/t"]']
            person.good(SORTIE, "plan", job, *data)
