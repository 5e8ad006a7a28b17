"""Runs that restart after a failure: all ranks start again, on the same hosts or on a spare, until the job is done or the
run stops with the reason."""

import hashlib
import json
import math
import os
import shutil
import signal
import struct
import time

from detach import Detached, ended
from harness import SANITIZED, SORTIE, Gates, Run, check, equal, in_time, run_to_end, wait_until
from machine_clock import now
from training import CONFIG, compare, losses, settings

# A host that does not run for three seconds is not lost: a busy machine may pause processes for as long.
QUICK = {"runner.grace": "1s", "runner.heartbeat_interval": "200ms", "runner.heartbeat_timeout": "5s"}
RESTART = {**QUICK, "recovery.max_restarts": 5, "recovery.backoff": "0s", "recovery.no_progress_limit": 0}


def events(run, name=None):
    path = run.folder_of_run() / "events.jsonl"
    text = path.read_text()
    found = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
    return [event for event in found if name in (None, event["event"])]


def attempts(run):
    return [event["attempt"] for event in events(run, "attempt")]


def ranks_of(run, attempt, count):
    """Waits until all `count` ranks of the attempt run. Returns {rank: (host, pid)}."""
    def there():
        check(run.process.poll() is None, "sortie ended meanwhile")
        found = run.bed.ranks(attempt=attempt)
        return found if len(found) == count else None
    return wait_until(there, 30, f"{count} ranks of attempt {attempt}")


def scenario_killed_ranks_restart_and_train_to_the_same_weights(bed):
    """SIGKILL of a rank in each of three attempts: the run ends by itself, with the losses and weights of an undisturbed run
    to the bit."""
    steps = 120 if SANITIZED else 240  # many more than before the last kill, so that no kill is too late
    job = {"hosts": "h[01-04]", "slots": 2}
    options = {"trainer__train_iterations": steps, "trainer__keep_last": 3, "topology__global_batch_size": 8,
               "trainer__save_interval": 3}
    folders = {name: bed.shared / f"restart-{name}" for name in ("whole", "killed")}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    with Run(bed, config=CONFIG, settings=settings(bed, trainer__save_dir=folders["whole"], **options), **job) as run:
        equal(run.wait(120), 0, "exit code of the run without a failure")
        whole = losses(run)
    saving = settings(bed, trainer__save_dir=folders["killed"], **options)
    with Run(bed, config=CONFIG, settings={**saving, **RESTART}, **job) as run:
        for attempt in (1, 2, 3):
            victims = ranks_of(run, attempt, 8)
            wait_until(lambda: max(losses(run), default=0) >= 12 * attempt, 60, f"step {12 * attempt}")
            os.kill(victims[2 * attempt][1], signal.SIGKILL)
        equal(run.wait(120), 0, f"exit code ({run.text()[-2000:]})")
        seen = losses(run)
        equal(attempts(run), [1, 2, 3, 4], "attempts")
        equal([event["class"] for event in events(run, "attempt_end")[:3]], ["software"] * 3, "classes")
        first = [event["begun_at_step"] for event in events(run, "attempt_end")]
        check(first[0] == 0 and all(step > 0 for step in first[1:]), f"attempts began at {first}")
        run.expect("attempt 1 has failed; restart after")
        for attempt in (1, 2, 3, 4):
            logs = run_to_end(SORTIE, "logs", "--attempt", str(attempt), run.id(), "--log-dir", run.folder)
            equal(logs.returncode, 0, f"logs --attempt {attempt}: {logs.stderr}")
        report = run_to_end(SORTIE, "report", run.id(), "--log-dir", run.folder)
        check("attempt 4" in report.stdout and "class software" in report.stdout, report.stdout)
        bed.expect_nothing_left(10)
    compare(seen, whole, "the run that was restarted")
    check(steps in seen, "it did not reach the last step")
    equal(weights(folders["killed"], steps), weights(folders["whole"], steps), "hashes of the last checkpoint")


def weights(folder, step):
    """Returns {tensor: hash} of a checkpoint, whichever ranks wrote it: a survivor that ends may save alone."""
    found = [path for path in folder.glob("*") if path.is_dir() and str(step) in path.name]
    check(found, f"no checkpoint of step {step} in {folder}")
    manifest = json.loads((found[0] / "manifest.json").read_text())
    shards = [TensorFile(found[0] / shard["file"]) for shard in manifest["shards"]]
    hashes = {}
    for name, tensor in manifest["tensors"].items():
        pieces = sorted(tensor["pieces"], key=lambda piece: piece.get("interval", [0])[0])
        content = b"".join(shards[piece["shard"]].content(piece["key"]) for piece in pieces)
        covered = [piece["interval"] for piece in pieces if "interval" in piece] or [[0, math.prod(tensor["shape"])]]
        check(covered[0][0] == 0 and covered[-1][1] == math.prod(tensor["shape"])
              and all(one[1] == other[0] for one, other in zip(covered, covered[1:])), f"{name} is not whole: {pieces}")
        hashes[name] = hashlib.sha256(content).hexdigest()
    return hashes


class TensorFile:
    """The tensors of a safetensors file, by name."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        size = struct.unpack("<Q", self.bytes[:8])[0]
        self.header = json.loads(self.bytes[8:8 + size])
        self.begin = 8 + size

    def content(self, key):
        begin, end = self.header[key]["data_offsets"]
        return self.bytes[self.begin + begin:self.begin + end]


def scenario_exit_code_restarts_and_stop_exit_code_does_not(bed):
    """A program that fails is restarted, with TORCHELASTIC_RESTART_COUNT counting up, until it exits with a stop exit code."""
    script = ('echo "attempt $SORTIE_ATTEMPT count $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"; '
              'test "$RANK" = 1 || exec sleep 1000; test "$SORTIE_ATTEMPT" -lt 3 && exit 9; exit 77')
    with Run(bed, "sh", "-c", script, hosts="h[01-02]", slots=1, settings=RESTART) as run:
        equal(run.wait(60), 77, "exit code")
        equal(attempts(run), [1, 2, 3], "attempts")
        for number in (1, 2, 3):
            logs = run_to_end(SORTIE, "logs", "--attempt", str(number), "--rank", "1", run.id(), "--log-dir", run.folder)
            check(f"attempt {number} count {number - 1} of 5" in logs.stdout, logs.stdout)
        newest = run_to_end(SORTIE, "logs", "--rank", "1", run.id(), "--log-dir", run.folder)
        check("attempt 3 count 2" in newest.stdout and "attempt 1" not in newest.stdout, newest.stdout)
        run.expect("recovery.stop_exit_codes")
        status = run_to_end(SORTIE, "status", run.id(), "--log-dir", run.folder)
        check("3 (2 restarts)" in status.stdout, status.stdout)
        bed.expect_nothing_left(10)


def scenario_budget_is_spent(bed):
    with Run(bed, "sh", "-c", 'test "$RANK" = 0 && exit 9; exec sleep 1000', hosts="h[01-02]", slots=1,
             settings={**RESTART, "recovery.max_restarts": 2}) as run:
        equal(run.wait(60), 9, "exit code")
        equal(attempts(run), [1, 2, 3], "attempts")
        run.expect("recovery.max_restarts")
        bed.expect_nothing_left(10)


def scenario_no_progress(bed):
    """Three attempts that commit nothing: the run has a special exit code, and the message lists the cause of each attempt."""
    with Run(bed, "sh", "-c", 'test "$RANK" = 0 && exit 9; exec sleep 1000', hosts="h[01-02]", slots=1,
             settings={**RESTART, "recovery.no_progress_limit": 3}) as run:
        equal(run.wait(60), 10, "exit code")
        equal(attempts(run), [1, 2, 3], "attempts")
        for number in (1, 2, 3):
            run.expect(f"attempt {number}: app")


def scenario_link_cut_and_a_spare(bed):
    """The link of a host is cut: its ranks run on the spare, and no rank runs twice at the same time."""
    with Gates(bed) as gates, \
         Run(bed, "sh", "-c", f'test "$SORTIE_ATTEMPT" = 1 && exec sleep 1000; {gates.wait("end")}',
             hosts="h[01-03]", slots=2, settings={**RESTART, "recovery.spares": '["h04 slots=2"]'}) as run:
        ranks_of(run, 1, 6)
        cut = time.time()
        bed.link("h02", "down")
        ranks = ranks_of(run, 2, 6)
        equal({host for host, _ in ranks.values()}, {"h01", "h03", "h04"}, "hosts of attempt 2")
        equal(sorted(rank for rank, (host, _) in ranks.items() if host == "h04"), [2, 3], "ranks of the spare")
        end = events(run, "attempt_end")[0]
        equal(end["class"], "hardware", "class")
        equal(end["blamed"], "h02", "who is blamed")
        lost = events(run, "host_lost")[0]["time"] - cut
        check(lost <= 5 + 5, f"{lost:.1f} s from the cut to the loss; heartbeat_timeout is 5 s")
        # Meanwhile the launcher tries for seconds to reach the host. The decision does not wait for that.
        order = [event["event"] for event in events(run) if event["event"] in ("decision", "swept", "unconfirmed")]
        equal(order[0], "decision", f"the first of {order}")
        gates.open("end")
        equal(run.wait(30), 0, "exit code")
        bed.link("h02", "up")
        bed.expect_nothing_left(10)


def scenario_ctrl_c_in_the_pause(bed):
    for number in (signal.SIGINT, signal.SIGTERM):
        with Run(bed, "sh", "-c", "exit 9", hosts="h[01-02]", slots=1,
                 settings={**RESTART, "recovery.backoff": "60s"}) as run:
            run.wait_for_text("attempt 1 has failed; restart")
            began = now()
            run.signal(number)
            equal(run.wait(30), 128 + number, "exit code")
            in_time(began, 15, "the end")  # although the pause is 60 s
            equal(attempts(run), [1], "attempts")
            bed.expect_nothing_left(10)


def lose(run):
    os.kill(run.supervisor(), signal.SIGKILL)
    wait_until(lambda: not run.supervisors(), 20, "the end of the supervisor")


def detached_events(run, name):
    text = (run.path / "events.jsonl").read_text()
    found = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
    return [event for event in found if event["event"] == name]


def scenario_supervisor_killed_between_attempts_is_adopted(bed):
    """The adopter finds a run without ranks and starts the next attempt, with the right number."""
    script = 'echo "attempt $SORTIE_ATTEMPT in $PWD $EXTRA"; test "$SORTIE_ATTEMPT" = 1 && exit 9; exit 0'
    chosen = {"recovery.max_restarts": 5, "recovery.backoff": "6s", "recovery.no_progress_limit": 0,
              "runner.on_launcher_loss": "hold 60s", "runner.env": '{EXTRA="more"}'}
    with Gates(bed) as gates, Detached(bed, "sh", "-c", f"{gates.wait('go')}; {script}", hosts="h[01-02]",
                                       settings=chosen) as run:
        gates.open("go")
        wait_until(lambda: detached_events(run, "decision"), 20, "a decision")
        lose(run)
        adopter = run.start("attach", "--adopt", run.id)
        ended(adopter, 30, 0)
        equal([event["attempt"] for event in detached_events(run, "attempt")], [1, 2], "attempts")
        said = run.sortie("logs", run.id).stdout
        check(said.count("attempt 2 in") == 2 and "more" in said, said)
        bed.expect_nothing_left(10)


def scenario_adopter_of_a_second_attempt_restarts_it(bed):
    """Attempt 2 is adopted. Then its ranks fail, and the adopter starts attempt 3."""
    chosen = {"recovery.max_restarts": 5, "recovery.backoff": "0s", "recovery.no_progress_limit": 0,
              "runner.on_launcher_loss": "hold 60s"}
    with Gates(bed) as gates:
        script = (f'test "$SORTIE_ATTEMPT" = 3 && exit 0; echo "up $SORTIE_ATTEMPT"; {gates.wait("fail-$SORTIE_ATTEMPT")}; '
                  "exit 9")
        with Detached(bed, "sh", "-c", script, hosts="h[01-02]", settings=chosen) as run:
            gates.open("fail-1")
            wait_until(lambda: run.sortie("logs", run.id).stdout.count("up 2") == 2, 20, "all of attempt 2")
            lose(run)
            adopter = run.start("attach", "--adopt", run.id)
            wait_until(lambda: detached_events(run, "adopted"), 20, "an adoption")
            gates.open("fail-2")
            ended(adopter, 30, 0)
            equal([event["attempt"] for event in detached_events(run, "attempt")], [1, 2, 3], "attempts")
            bed.expect_nothing_left(10)


def scenario_killed_supervisor_without_hold_is_started_again(bed):
    """on_launcher_loss = "kill": hosts have ended their ranks; `attach --adopt` starts the next attempt."""
    chosen = {"recovery.max_restarts": 5, "recovery.backoff": "0s", "recovery.no_progress_limit": 0}
    with Detached(bed, "sh", "-c", 'test "$SORTIE_ATTEMPT" = 2 || exec sleep 1000', hosts="h[01-02]",
                  settings=chosen) as run:
        lose(run)
        adopter = run.start("attach", "--adopt", run.id)
        ended(adopter, 30, 0)
        equal([event["attempt"] for event in detached_events(run, "attempt")], [1, 2], "attempts")
        bed.expect_nothing_left(10)
