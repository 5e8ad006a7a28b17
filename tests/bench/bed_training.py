"""Trainings on the hosts of a testbed, for benchmarks: a config with token files, its runs, their steps."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bed_bench import ROOT, SORTIE, BedOf, shape_links, shared_folder, tokens, whole_lines

sys.path.insert(0, str(ROOT / "scripts/testbed.d"))
import bed as testbed  # noqa: E402

# A published model on ranks with one thread, each with `micro_batches` micro-batches of one sequence.
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
    """with BedTraining("scaling", 4, CONFIG, [KEY=VALUE, ...]) as training: hosts that have the runner, links without limits yet. CONFIG: a config
    without its [data]. `config` and `shared` are paths that the hosts see, too; `bed` is the testbed's. All of it is removed at the end."""

    def __init__(self, bed_id, hosts, config, sets=()):
        self.hosts, self.sets, self.runs = hosts, list(sets), 0
        self.bed_id, self.text = bed_id, config
        self.bed = testbed.Bed(os.environ.get("SORTIE_TESTBED_ID", bed_id))

    def __enter__(self):
        with contextlib.ExitStack() as made:  # a failure in this block removes the bed
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
        """Returns the names of the first `count` hosts, or of all."""
        return [f"h{number:02d}" for number in range(1, (count or self.hosts) + 1)]

    def at(self, names):
        return ["--hosts", ",".join(names), "--ssh-config", self.environment["SORTIE_TESTBED_SSH_CONFIG"]]

    def with_sets(self, sets=()):
        return [word for one in (*self.sets, *sets) for word in ("--set", one)]

    def shape(self, rate):
        """Limits the links in both directions; "off": no limits."""
        if rate != "off":
            shape_links(self.bed, self.hosts, rate)

    def sortie(self, *words):
        """Runs a command and returns its output. Exits if it fails."""
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
        """Starts a run of a config with --set, or of a program after `--` in `words`, and does not wait. Returns (process, state folder)."""
        self.runs += 1
        state = self.folder / f"state-{self.runs}"
        return self.begin("run", *self.at(names or self.names()), "--slots", slots, "--set", f"logger.log_dir={state}", *words), state

    def finish(self, run):
        """Waits for the end of a run. Returns its folder."""
        process, state = run
        self.said(process, "run")
        return (state / "runs/latest").resolve()

    def run(self, *words, **where):
        return self.finish(self.start(*words, **where))

    def start_training(self, sets=(), **where):
        return self.start(self.config, *self.with_sets(sets), **where)

    def train(self, sets=(), **where):
        """Runs a training. Returns its folder."""
        return self.finish(self.start_training(sets, **where))


def seconds_of_steps(folder, first):
    """Returns the seconds of each step of a training, without the first `first` steps."""
    return [event["step_ms"] / 1e3 for event in whole_lines(folder / "metrics.jsonl") if event["type"] == "step"][first:]


def lines_of_ranks(folder):
    """Returns the lines with a JSON object in the output of the ranks."""
    return [line for path in sorted(folder.glob("logs/**/*.out")) for line in path.read_text().splitlines() if line.startswith("{")]
