"""Runs that change their hosts by themselves: fewer after a loss, all again when a host is back, a spare in place of a slow host."""

import json
import os
import signal
import subprocess
import time

from harness import PROGRAMS, SORTIE, Run, check, equal, in_time, wait_until
from machine_clock import now
from restart import RESTART, events, ranks_of

WAIT_THEN_END = ("sh", "-c", 'test "$SORTIE_ATTEMPT" = 3 || exec sleep 1000')


def hosts_of(run):
    return [event["hosts"] for event in events(run, "attempt")]


def report(run):
    return subprocess.run([SORTIE, "report", run.id(), "--log-dir", run.folder], text=True, capture_output=True).stdout


def scenario_lost_host_is_back_and_takes_part_at_the_next_restart(bed):
    """Not sortie-train, so any number of ranks is valid. Only a failure restarts it."""
    chosen = {**RESTART, "recovery.min_hosts": 2, "recovery.fit_interval": "1s"}
    with Run(bed, *WAIT_THEN_END, hosts="h[01-03]", slots=1, settings=chosen) as run:
        ranks_of(run, 1, 3)
        bed.link("h02", "down")
        ranks = ranks_of(run, 2, 2)
        bed.link("h02", "up")
        wait_until(lambda: events(run, "host_fit"), 60, "h02 is found fit")
        equal(len(events(run, "attempt")), 2, "attempts: nothing restarts for that")
        os.kill(ranks[0][1], signal.SIGKILL)
        equal(run.wait(60), 0, f"exit code ({run.text()[-2000:]})")
        equal(hosts_of(run), [["h01", "h02", "h03"], ["h01", "h03"], ["h01", "h02", "h03"]], "hosts of the attempts")
        run.expect("h02 is fit again")
        check("h02 is fit and takes part again; 3 of 3 hosts continue" in report(run), report(run))
        bed.expect_nothing_left(10)


def scenario_run_that_ends_in_the_middle_of_a_check(bed):
    """The lost host does not answer, so its check takes long. The end of the run does not wait for it."""
    chosen = {**RESTART, "recovery.min_hosts": 2, "recovery.fit_interval": "1s", "logger.log_level": "debug"}
    with Run(bed, "sleep", "1000", hosts="h[01-03]", slots=1, settings=chosen) as run:
        ranks_of(run, 1, 3)
        bed.link("h02", "down")
        ranks_of(run, 2, 2)
        time.sleep(2)  # longer than fit_interval: a check is running or about to start
        began = now()
        run.signal(signal.SIGINT)
        equal(run.wait(30), 130, f"exit code ({run.text()[-2000:]})")
        in_time(began, 8, "the end")
        bed.link("h02", "up")
        bed.expect_nothing_left(15)


def scenario_slow_host_leaves_for_a_spare_after_a_commit(bed):
    """The first spare is not fit. No rank is stopped before a fit spare is found."""
    committed = bed.shared / "slow-committed"
    committed.unlink(missing_ok=True)
    chosen = {**RESTART, "recovery.spares": '["nowhere slots=1", "h04 slots=1"]', "recovery.slow_swaps": 1,
              "recovery.progress_file": committed, "watchdog.straggler_windows": 1}
    with Run(bed, "python3", PROGRAMS / "slow_rank.py", committed, hosts="h[01-03]", slots=1, settings=chosen) as run:
        equal(run.wait(60), 0, f"exit code ({run.text()[-2000:]})")
        equal(hosts_of(run), [["h01", "h02", "h03"], ["h01", "h04", "h03"]], "hosts of the attempts")
        end = events(run, "attempt_end")[0]
        equal((end["class"], end["slow"]), ("planned", ["h02"]), "class, and who was slow")
        check(end["committed_step"] > 100, f"{end}")
        run.expect("nowhere is not fit")
        check("h02 is slow: spare h04 takes its place" in report(run), report(run))
        store = json.loads(subprocess.run([SORTIE, "nodes", "ls", "--json"], text=True, capture_output=True).stdout)
        equal(store["cordoned"], [], "cordoned hosts")
        bed.expect_nothing_left(10)
