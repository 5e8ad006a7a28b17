"""Ranks that make no progress: each hang is detected in time, the right rank is blamed, and the stacks of all ranks are saved."""

import contextlib
import json
import os
import re
import signal
import time

import training
from harness import PATIENCE, PROGRAMS, ROOT, SORTIE, Run, check, equal, run_to_end, wait_until, whole_events

HANG = 6
LIMIT = 5
# With this limit a hang is detected within 12 s on a busy machine. The stacks take at most 4 s more.
FOUND_WITHIN = 12
# Heartbeats carry progress: at the default interval of 2 s it would be almost half a limit old when it arrives.
WATCHDOG = {"watchdog.hang_timeout": f"{LIMIT}s", "runner.heartbeat_interval": "1s"}
# More steps than a scenario needs.
ENDLESS = {"trainer__train_iterations": 1_000_000}


def events(run, name):
    return [event for event in whole_events(run.folder_of_run() / "events.jsonl") if event["event"] == name]


def found(run, since, seconds=FOUND_WITHIN):
    """Waits for the event `hang`, checks that it was in time, and returns it."""
    hang = wait_until(lambda: events(run, "hang"), seconds + 20, "a hang in the journal")[0]
    delay = hang["time"] - since
    check(delay <= seconds * PATIENCE, f"found after {delay:.1f} s, not {seconds}")
    print(f"found after {delay:.2f} s: {hang['text']}")
    return hang


def stacks(run):
    folder = run.folder_of_run() / "attempts/1/stacks"
    return {int(path.stem.removeprefix("rank-")): path.read_text() for path in folder.glob("rank-*.txt")}


def wait_for_steps(run, steps=8):
    wait_until(lambda: len(training.losses(run)) >= steps, 60, f"{steps} steps")


def status(run):
    done = run_to_end(SORTIE, "status", run.id(), "--log-dir", run.folder, "--json")
    equal(done.returncode, 0, f"exit code of status ({done.stderr})")
    return json.loads(done.stdout)


def report(run):
    done = run_to_end(SORTIE, "report", run.id(), "--log-dir", run.folder)
    equal(done.returncode, 0, f"exit code of report ({done.stderr})")
    return done.stdout


def scenario_a_stopped_rank_of_a_training(bed):
    with Run(bed, config=training.CONFIG, hosts="h[01-04]", slots=2, settings={**training.settings(bed, **ENDLESS), **WATCHDOG}) as run:
        ranks = run.wait_for_ranks(8, seconds=40)
        wait_for_steps(run)
        def placed():
            ranks = [rank for host in status(run)["hosts"] for rank in host["ranks"]]
            return [rank["rank"] for rank in ranks if rank.get("step", 0) > 0 and rank["section"]] == list(range(8))
        wait_until(placed, 20, "status knows the step of all ranks")
        host, pid = ranks[5]
        since = time.time()
        os.kill(pid, signal.SIGSTOP)
        hang = found(run, since)
        equal(run.wait(30), HANG, "exit code")
        equal((hang["behind"], hang["host"], hang["standing_ranks"]), ([5], host, 8), "whom the others wait for")
        check("is silent" in hang["text"], f"why: {hang['text']}")
        run.expect(rf"rank 5 on {host} makes no progress: step \d+, ")
        run.expect(r"stacks of 8 ranks: .*/attempts/1/stacks")
        texts = stacks(run)
        equal(sorted(texts), list(range(8)), "ranks with stacks")
        check("T (stopped)" in texts[5], f"the kernel's view of the stopped rank:\n{texts[5][:2000]}")
        check(texts[5].startswith("rank 5, kernel: no process of it answered SIGQUIT"), texts[5][:200])
        waiting = [rank for rank, text in sorted(texts.items()) if text.startswith(f"rank {rank}, program") and "wait" in text]
        equal(waiting, [0, 1, 2, 3, 4, 6, 7], "ranks that tell where they wait")
        cause = events(run, "cause")[0]
        equal((cause["what"], cause["host"], cause["rank"]), ("hang", host, 5), "the cause")
        check("hang: rank 5" in report(run), "the report names the hang")
    bed.expect_nothing_left(10)


@contextlib.contextmanager
def no_way_between(bed, host, other):
    """Drops packets between the two hosts. Both can still reach the bastion."""
    ways = [(host, f"{bed.address(other)}/32"), (other, f"{bed.address(host)}/32")]
    try:
        for at, to in ways:
            bed.run_in(at, "ip", "route", "add", "blackhole", to, as_root=True)
        yield
    finally:
        for at, to in ways:
            with contextlib.suppress(AssertionError):
                bed.run_in(at, "ip", "route", "del", "blackhole", to, as_root=True)


def scenario_ranks_that_are_stuck_in_a_collective(bed):
    """The network between two hosts drops all packets: both ranks block in a collective, and the event names it."""
    with Run(bed, config=training.CONFIG, hosts="h[01-02]", slots=1, settings={**training.settings(bed, **ENDLESS), **WATCHDOG}) as run:
        run.wait_for_ranks(2, seconds=40)
        wait_for_steps(run)
        with no_way_between(bed, "h01", "h02"):
            hang = found(run, time.time())
            equal(run.wait(30), HANG, "exit code")
        equal(hang["standing_ranks"], 2, "ranks that stand still")
        check(hang["section"] in ("reduce", "evaluate", "save"), f"they wait in {hang['section']}")
        check(hang["sequence"] > 0, "the collective is named")
        for rank, text in stacks(run).items():
            check(text.startswith(f"rank {rank}, program"), text[:200])
            check("sortie7trainer" in text, f"names of functions are in the stacks:\n{text[:3000]}")
    bed.expect_nothing_left(10)


def scenario_a_python_program_that_sleeps(bed):
    settings = {**WATCHDOG, "runner.env.PYTHONPATH": ROOT / "share"}
    with Run(bed, "python3", PROGRAMS / "sleepy.py", hosts="h[01-03]", slots=1, settings=settings) as run:
        ranks = run.wait_for_ranks(3)
        since = run.wait_for_text(r"asleep at ([\d.]+)", 30)
        hang = found(run, float(since.group(1)))
        equal(run.wait(30), HANG, "exit code")
        equal((hang["behind"], hang["host"], hang["step"]), ([1], ranks[1][0], 20), "what stands still")
        text = stacks(run)[1]
        check(text.startswith("rank 1, program"), text[:200])
        check(re.search(r'File ".*sleepy.py", line \d+ in wait_for_a_peer_that_never_comes', text), f"Python's own stack:\n{text[:2000]}")
    bed.expect_nothing_left(10)


def scenario_what_is_slow_but_moves_is_no_hang(bed):
    """A program that reports no progress, and a launcher that is stopped for longer than the limit."""
    with Run(bed, "sleep", "8", hosts="h01", slots=1, settings=WATCHDOG) as run:
        equal(run.wait(40), 0, "exit code of a program that tells nothing")
    hold = {"runner.on_launcher_loss": '"hold 60s"', "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "3s"}
    with Run(bed, config=training.CONFIG, hosts="h[01-02]", slots=1,
             settings={**training.settings(bed, **ENDLESS), **WATCHDOG, **hold}) as run:
        run.wait_for_ranks(2, seconds=40)
        wait_for_steps(run)
        os.kill(run.process.pid, signal.SIGSTOP)
        time.sleep(LIMIT + 3)  # the pause must be longer than the limit
        os.kill(run.process.pid, signal.SIGCONT)
        wait_for_steps(run, len(training.losses(run)) + 20)
        equal(events(run, "hang"), [], "hangs")
        run.signal(signal.SIGINT)
        equal(run.wait(30), 130, "exit code")
    bed.expect_nothing_left(10)
