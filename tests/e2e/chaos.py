"""`sortie chaos` in several kinds of runs: cut links, stopped ranks, a supervisor that is killed while a host is missing.
`sites.chaos_reaches_the_ranks_of_sites` covers killed ranks. `tests/bench/soak` injects its faults without `sortie chaos`."""

import os
import signal
from types import SimpleNamespace

from detach import Detached
from harness import PROGRAMS, SORTIE, Run, check, equal, run_to_end, wait_until
from regrow import WAIT_THEN_END, hosts_of, report
from restart import RESTART, detached_events, events, ranks_of

ONCE = ("--every", "1s", "--count", "1", "--yes")
NOTICED = {**RESTART, "runner.heartbeat_timeout": "2s"}  # shorter than the cuts, so that they are noticed


def chaos(run, *words):
    done = run_to_end(SORTIE, "chaos", run.id(), "--log-dir", run.folder, *ONCE, *words, seconds=60)
    equal(done.returncode, 0, f"exit code of chaos ({done.stdout}{done.stderr})")
    return done.stdout


def scenario_cuts_a_link(bed):
    """With a hold, ranks do not notice the cut. Without one the host is lost, and swept when its link is back."""
    two = ("sh", "-c", 'test "$SORTIE_ATTEMPT" = 2 || exec sleep 1000')
    with Run(bed, *two, hosts="h[01-02]", slots=1, settings={**NOTICED, "runner.on_launcher_loss": "hold 60s"}) as run:
        ranks = ranks_of(run, 1, 2)
        said = chaos(run, "--faults", "link", "--link-down", "4s", "--seed", "3")
        check("link to h0" in said and "cut for 4s" in said, said)
        wait_until(lambda: events(run, "link_restored"), 30, "the link is back")
        equal(ranks_of(run, 1, 2), ranks, "ranks")
        equal(len(events(run, "fault")), 1, "faults in the journal")
        check("`sortie chaos` cut the link" in report(run), report(run))
        run.signal(signal.SIGINT)
        equal(run.wait(20), 130, "exit code")
        bed.expect_nothing_left(5)
    with Run(bed, *two, hosts="h[01-02]", slots=1, settings=NOTICED) as run:
        ranks_of(run, 1, 2)
        chaos(run, "--faults", "link", "--link-down", "5s", "--seed", "4")  # longer, because a busy launcher notices the cut late
        equal(run.wait(60), 0, f"exit code ({run.text()[-2000:]})")
        end = events(run, "attempt_end")[0]
        equal((end["class"], end["blamed"]), ("hardware", events(run, "fault")[0]["host"]), "class, and who is blamed")
        equal(hosts_of(run)[1], ["h01", "h02"], "hosts of attempt 2")
        bed.expect_nothing_left(8)


def scenario_stops_a_rank(bed):
    """A stopped rank is detected as a hang, and the next attempt runs to its end."""
    committed = bed.shared / "chaos-committed"
    committed.unlink(missing_ok=True)
    with Run(bed, "python3", PROGRAMS / "slow_rank.py", committed, hosts="h[01-02]", slots=1,
             settings={**RESTART, "watchdog.hang_timeout": "4s", "watchdog.dump_timeout": "1s"}) as run:
        ranks_of(run, 1, 2)
        wait_until(lambda: committed.exists(), 20, "steps")
        said = chaos(run, "--faults", "stop", "--seed", "1")
        check("stop rank" in said, said)
        equal(run.wait(60), 0, f"exit code ({run.text()[-2000:]})")
        equal([event.get("class") for event in events(run, "attempt_end")], ["hang", None], "classes")
        bed.expect_nothing_left(5)


def pids(bed, attempt, count):
    """Returns {rank: (host, pid)} of an attempt of a detached run, which must be the only run on the bed."""
    return ranks_of(SimpleNamespace(bed=bed, process=SimpleNamespace(poll=lambda: None)), attempt, count)


def scenario_kills_the_supervisor_while_a_host_is_missing(bed):
    """The next supervisor knows the hosts of the job, checks the missing one, and uses it again at the next restart."""
    chosen = {**RESTART, "recovery.supervisor_restarts": 10, "recovery.min_hosts": 2, "recovery.fit_interval": "1s",
              "runner.on_launcher_loss": "hold 8s"}
    with Detached(bed, *WAIT_THEN_END, hosts="h[01-03]", settings=chosen) as run:
        pids(bed, 1, 3)
        bed.link("h02", "down")
        wait_until(lambda: len(detached_events(run, "attempt")) == 2, 60, "attempt 2")
        ranks = pids(bed, 2, 2)
        done = run.sortie("chaos", run.id, "--faults", "supervisor", *ONCE)
        equal(done.returncode, 0, f"exit code of chaos ({done.stdout}{done.stderr})")
        wait_until(lambda: detached_events(run, "adopted"), 40, "another supervisor")
        bed.link("h02", "up")
        wait_until(lambda: detached_events(run, "host_fit"), 40, "h02 is found fit")
        equal(pids(bed, 2, 2), ranks, "ranks of attempt 2")
        os.kill(ranks[0][1], signal.SIGKILL)
        wait_until(lambda: run.status()["state"] == "ended", 60, "the end")
        equal(run.status()["exit_code"], 0, "exit code")
        equal([event["hosts"] for event in detached_events(run, "attempt")],
              [["h01", "h02", "h03"], ["h01", "h03"], ["h01", "h02", "h03"]], "hosts of the attempts")
        bed.expect_nothing_left(10)
