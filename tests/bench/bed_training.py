"""Trainings on the hosts of a test bed, for benchmarks: a config with token files, runs of it, their steps."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bed_bench import ROOT, SORTIE, BedOf, shape_links, shared_folder, tokens, whole_lines

sys.path.insert(0, str(ROOT / "scripts/testbed.d"))
import bed as testbed  # noqa: E402

# A published model on ranks of one thread, as many micro-batches of one sequence on each.
PRESET_JOB = """
[topology]
micro_batch_size = 1
gradient_accumulation_steps = {micro_batches}
[trainer]
threads = 1
train_iterations = {steps}
[learning_rate_scheduler]
learning_rate = 1e-4
[model]
preset = "{preset}"
sequence_length = {tokens}
"""


class BedTraining:
    """with BedTraining("scaling", 4, CONFIG, [KEY=VALUE, ...]) as training: hosts that have the runner, links not shaped yet. CONFIG: a config without
    its [data]. `config` and `shared` are paths that the hosts see too; `bed` is the testbed's. All of it goes at the end."""

    def __init__(self, bed_id, hosts, config, sets=()):
        self.hosts, self.sets, self.runs = hosts, list(sets), 0
        self.bed_id, self.text = bed_id, config
        self.bed = testbed.Bed(os.environ.get("SORTIE_TESTBED_ID", bed_id))

    def __enter__(self):
        with contextlib.ExitStack() as made:  # what fails in here leaves no bed behind
            self.environment = made.enter_context(BedOf(self.hosts, self.bed_id))
            self.folder = Path(made.enter_context(tempfile.TemporaryDirectory()))
            self.folder.chmod(0o755)
            self.shared = shared_folder(self.environment)
            self.config = self.shared / "job.toml"
            self.config.write_text(f"[data]\ndata_prefixes = [\"{tokens(self.shared)}\"]\n{self.text}")
            self.config.chmod(0o644)
            self.sortie("exec", *self.at(self.names()), "--", "true")
            self.made = made.pop_all()
        return self

    def __exit__(self, *error):
        return self.made.__exit__(*error)

    def names(self, count=None):
        """Of the first so many hosts, or of all."""
        return [f"h{number:02d}" for number in range(1, (count or self.hosts) + 1)]

    def at(self, names):
        return ["--hosts", ",".join(names), "--ssh-config", self.environment["SORTIE_TESTBED_SSH_CONFIG"]]

    def with_sets(self, sets=()):
        return [word for one in (*self.sets, *sets) for word in ("--set", one)]

    def shape(self, rate):
        """Links both ways; "off": as they are."""
        if rate != "off":
            shape_links(self.bed, self.hosts, rate)

    def sortie(self, *words):
        """What a command prints; exits where it fails."""
        return self.said(self.begin(*words), words[0])

    def begin(self, *words):
        return subprocess.Popen([str(word) for word in (SORTIE, *words)], env=self.environment, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def said(self, process, verb):
        try:
            output, errors = process.communicate(timeout=1800)
        except BaseException:  # as subprocess.run() does
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            sys.exit(f"sortie {verb}: exit code {process.returncode}\n{output[-2000:]}\n{errors[-2000:]}")
        return output

    def start(self, *words, names=None, slots=1):
        """A run, which goes on, of the config and --set, or of what follows `--` in `words`."""
        self.runs += 1
        state = self.folder / f"state-{self.runs}"
        return self.begin("run", *self.at(names or self.names()), "--slots", slots, "--set", f"logger.log_dir={state}", *words), state

    def finish(self, run):
        """The folder of a run once it is over."""
        process, state = run
        self.said(process, "run")
        return (state / "runs/latest").resolve()

    def run(self, *words, **where):
        return self.finish(self.start(*words, **where))

    def start_training(self, sets=(), **where):
        return self.start(self.config, *self.with_sets(sets), **where)

    def train(self, sets=(), **where):
        """The folder of a training."""
        return self.finish(self.start_training(sets, **where))


def seconds_of_steps(folder, first):
    """Of the steps of a training behind its first so many."""
    return [event["step_ms"] / 1e3 for event in whole_lines(folder / "metrics.jsonl") if event["type"] == "step"][first:]


def lines_of_ranks(folder):
    """Lines with a JSON object that ranks printed."""
    return [line for path in sorted(folder.glob("logs/**/*.out")) for line in path.read_text().splitlines() if line.startswith("{")]
