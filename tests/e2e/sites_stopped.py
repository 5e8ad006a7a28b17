"""Sites that are stopped, killed or disconnected in the middle of a round: no run hangs, checkpoints have committed rounds,
and all sites continue with the same weights."""

import json
import os
import signal
import time
from contextlib import contextmanager, suppress

from check import shaped
from harness import SANITIZED, SORTIE, check, equal, run_to_end, wait_until
from sites_training import SitesRun, counters, model_of, newest, wait_for_all
from sites_training import finish as finish_run
from training import ENDLESS

# At this rate an exchange of the tiny model takes seconds, while control messages still pass.
SLOW = "2mbit"
SLOWER = 10 if SANITIZED else 1  # factor for the time of a step; rounds have fewer steps then, so that they take as long
OPTIONS = {"steps": ENDLESS, "topology__gradient_compression": "medium", "outer__wire": "f32", "outer__every": 10,
           "runner__grace": "30s"}


def wait_for_exchange(run, rounds=1):
    """Waits until a round after `rounds` was ordered and is not committed yet."""
    def under_way():
        lines = [line for line in run.log_lines() if line["do"] in ("order", "commit")]
        return bool(lines) and lines[-1]["do"] == "order" and lines[-1]["round"] > rounds
    wait_until(under_way, 60, "an exchange")
    time.sleep(0.3)  # well into it


def expect_whole_checkpoints(run):
    """Checks that checkpoints are of committed rounds, and that sites with the same round have the same weights. Returns the newest round."""
    committed = max(run.commits())
    rounds = {}
    for site in run.names:
        step, found = newest(run, site)
        # A site may not know yet that the last round was committed.
        check(committed - 1 <= found["outer.round"] <= committed, f"{site}: round {found['outer.round']}, committed {committed}")
        if not found["outer.done"]:
            outer = {name: value for name, value in model_of(run.weights(site, step)).items() if "outer.own" not in name}
            equal(rounds.setdefault(found["outer.round"], outer), outer, f"weights of {site} in round {found['outer.round']}")
    return max(newest(run, site)[1]["outer.round"] for site in run.names)


def finish(bed, name, first, **options):
    finish_run(bed, name, first, **{**OPTIONS, **options})


def stop_in_an_exchange(bed, name, number, asked=None, **options):
    """`asked`: a site whose rank gets SIGTERM in an earlier exchange, as in a preemption."""
    with SitesRun(bed, name, **{**OPTIONS, **options}) as run:
        wait_until(lambda: run.commits(), 60, "a round")
        with shaped(bed, {"h01": SLOW}):
            wait_for_exchange(run)
            if asked:
                os.kill(wait_until(lambda: run.rank_of(asked), 20, f"the rank of {asked}"), signal.SIGTERM)
                wait_until(lambda: run.attempts()[asked] == 2, 40, f"attempt 2 of {asked}")
                wait_for_all(run, max(run.commits()))
                wait_for_exchange(run, max(run.commits()))
            run.run.signal(number)
            before = max(run.commits())
            equal(run.run.wait(60), 128 + number, "exit code")
            check(max(run.commits()) <= before + 1, f"rounds went on after the signal: {run.commits()}")
        bed.expect_nothing_left(10)
        first = expect_whole_checkpoints(run)
    finish(bed, name, first, **options)


def scenario_sigterm_in_an_exchange_of_two_sites_with_two_parts(bed):
    stop_in_an_exchange(bed, "term", signal.SIGTERM, slots=2, topology__tensor_parallel_size=2)


def scenario_sigint_in_an_exchange_of_three_sites(bed):
    """After an earlier exchange in which only one site got SIGTERM, and came back."""
    stop_in_an_exchange(bed, "int", signal.SIGINT, asked="s2", sites=3, topology__global_batch_size=6,
                        recovery__max_restarts=5, recovery__backoff="0s")


def scenario_stopped_within_a_round_equals_unstopped(bed):
    """SIGTERM within a round, in the steps or in the exchange: the same command continues after the last step, with the losses of a run
    that was not stopped."""
    every = 400 // SLOWER
    steps = 3 * every
    options = {**OPTIONS, "steps": steps, "outer__every": every, "outer__equal_steps": "true"}
    with SitesRun(bed, "unstopped", **options) as run:
        equal(run.run.wait(120), 0, "exit code of the unstopped run")
        unstopped = {site: run.losses(site) for site in run.names}
    for where in ("steps", "exchange"):
        with SitesRun(bed, f"within-{where}", **options) as run:
            if where == "steps":
                wait_until(lambda: run.commits() and all(max(run.losses(site), default=0) > every + 10 for site in run.names), 60,
                           "steps of the second round")
                run.run.signal(signal.SIGTERM)
            else:
                wait_until(lambda: run.commits(), 60, "a round")
                with shaped(bed, {"h01": SLOW}):
                    wait_for_exchange(run)
                    run.run.signal(signal.SIGTERM)
                    run.run.wait(60)
            equal(run.run.wait(60), 143, "exit code")
            done = {site: newest(run, site) for site in run.names}
            check(all(step % every or found["outer.done"] for step, found in done.values()), f"not stopped within a round: {done}")
        with SitesRun(bed, f"within-{where}", goes_on=True, **options) as run:
            equal(run.run.wait(120), 0, "exit code of the run that goes on")
            for site in run.names:
                found, (step, counted) = run.losses(site), done[site]
                equal(min(found, default=step + 1), step + 1, f"first step of {site}, stopped in {counted}")
                equal(found, {at: loss for at, loss in unstopped[site].items() if at > step}, f"losses of {site} after step {step}")


def scenario_a_host_of_a_site_dies_in_an_exchange(bed):
    """Not the leader's host. The other sites abort the exchange and repeat it without this site, which comes back."""
    options = {"hosts_each": [1, 2], "recovery__max_restarts": 5, "recovery__backoff": "5s"}  # long enough for a round without it
    with SitesRun(bed, "host", **{**OPTIONS, **options}) as run:
        wait_until(lambda: run.commits(), 60, "a round")
        with shaped(bed, {"h01": SLOW}):
            wait_for_exchange(run)
            for pid, *_ in bed.processes("h03"):
                with suppress(ProcessLookupError):  # has ended together with another one
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: ["s0"] in run.commits().values(), 60, "a round without s1")
        wait_for_all(run, max(run.commits()))
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        rounds = sorted(number for number in run.commits())
        equal(rounds, list(range(1, len(rounds) + 1)), "rounds that were committed")
        first = expect_whole_checkpoints(run)
    finish(bed, "host", first, **options)


def scenario_one_rank_of_a_site_is_asked_to_end_in_an_exchange(bed):
    """The other rank of the site does not get the signal, and saves with it all the same."""
    options = {"slots": 2, "topology__tensor_parallel_size": 2, "recovery__max_restarts": 5, "recovery__backoff": "0s"}
    with SitesRun(bed, "one", **{**OPTIONS, **options}) as run:
        wait_until(lambda: run.commits(), 60, "a round")
        with shaped(bed, {"h01": SLOW}):
            wait_for_exchange(run)
            os.kill(wait_until(lambda: run.rank_of("s1"), 20, "a rank of s1"), signal.SIGTERM)
            wait_until(lambda: run.attempts()["s1"] == 2, 40, "attempt 2 of s1")
            newest(run, "s1")
        wait_for_all(run, max(run.commits()))
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        first = expect_whole_checkpoints(run)
    finish(bed, "one", first, **options)


@contextmanager
def stopped(pids):
    def send(number):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def scenario_stopped_while_a_site_is_to_copy_the_weights(bed):
    """A site that is about to copy weights has none to save: it writes no checkpoint, and the run continues from that of the other
    site, although this site is the first in the config."""
    # Rounds so long, of seconds, that both sites are in their steps when the donor is stopped: no site is ordered to copy while a
    # site waits for the others or exchanges.
    options = {"recovery__max_restarts": 5, "recovery__backoff": "0s", "outer__every": 1200 // SLOWER}
    with SitesRun(bed, "copies", **{**OPTIONS, **options}) as run:
        donor = wait_until(lambda: run.rank_of("s1"), 20, "the rank of s1")
        wait_until(lambda: len(run.rounds("s1")) >= 2, 120, "two rounds of s1")  # it then knows that the second one was committed
        with stopped([donor]):
            os.kill(wait_until(lambda: run.rank_of("s0"), 20, "the rank of s0"), signal.SIGKILL)
            wait_until(lambda: any(one["what"] == "joined" and one["site"] == "s0" and one.get("sites") == ["s1"]
                                   for one in run.journal("round")), 30, "that s0 is to copy")
            time.sleep(3)  # the order is on its way to s0, and no event shows its arrival
            run.run.signal(signal.SIGINT)
            why = "no checkpoint: this site is to take the weights"
            wait_until(lambda: any(why in one["text"] for one in run.events("s0", "note")), 20, "why s0 saves nothing")
        equal(run.run.wait(60), 130, "exit code")
        equal(counters(run, "s0"), {}, "checkpoints of s0")
        first = newest(run, "s1")[1]["outer.round"]
        check(first >= 2, f"s1 has saved round {first}")
    finish(bed, "copies", first, **options)


def scenario_a_site_that_comes_back_in_a_round_does_no_more_of_it(bed):
    """All processes of a site are stopped for longer than the deadline, in a long round. When they continue, the site learns at
    once that the round was committed without it, and reports how many of its steps were in vain."""
    every = 1500 // SLOWER  # more than before the processes are stopped
    with SitesRun(bed, "away", **{**OPTIONS, "outer__every": every, "outer__deadline": "1s",
                                  "runner__heartbeat_timeout": "60s"}) as run:
        wait_until(lambda: run.losses("s1"), 60, "steps of s1")
        with stopped([pid for pid, *_ in bed.processes("h02")]):
            wait_until(lambda: run.commits().get(1) == ["s0"], 150, "a round without s1")
        joined = wait_until(lambda: [one for one in run.journal("round") if one["what"] == "joined" and one["site"] == "s1"
                                     and "steps_in_vain" in one], 30, "s1 in the rounds again")[0]
        equal(joined["sites"], ["s0"], "whose weights s1 takes")
        in_vain = joined["steps_in_vain"]
        check(0 < in_vain < every, f"{in_vain} steps in vain, of {every}")
        # The note is written with the next step.
        note = wait_until(lambda: [one["text"] for one in run.events("s1", "note") if "in vain" in one["text"]], 120, "a note")[0]
        check(f"{in_vain} steps of round 1 were in vain" in note and "committed without" in note, note)
        run.run.wait_for_text(f"site s1 joins at round 1, with the weights of s0; it had done {in_vain} steps in vain")
        status = run_to_end(SORTIE, "status", run.run.id(), "--log-dir", run.run.folder).stdout
        check(f", {in_vain} steps in vain" in status, f"status: {status}")
        listed = json.loads(run_to_end(SORTIE, "sites", "ls", "--json", run.run.id(), "--log-dir", run.run.folder).stdout)
        equal([site.get("steps_in_vain", 0) for site in listed["sites"]], [0, in_vain], "sites ls")
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")


def scenario_a_site_that_was_lost_and_comes_back_commits_nothing(bed):
    """A site that is stopped for longer than the heartbeat timeout is started again. Its stopped processes then continue
    for a moment, and take part in no round."""
    options = {"recovery__max_restarts": 5, "recovery__backoff": "0s", "runner__heartbeat_timeout": "5s"}
    with SitesRun(bed, "lost", **{**OPTIONS, **options}) as run:
        wait_until(lambda: len(run.commits()) >= 2, 60, "two rounds")
        old = [pid for pid, *_ in bed.processes("h02")]
        with stopped(old):
            wait_until(lambda: run.attempts().get("s1") == 2, 60, "attempt 2 of s1")
            wait_for_all(run, max(run.commits()))
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in old), 20, "the end of what was stopped")
        going = max(run.commits())
        wait_until(lambda: max(run.commits()) > going + 3, 60, "more rounds")
        check(all(run.commits()[number] == run.names for number in range(going + 1, going + 3)), f"rounds: {run.commits()}")
        equal(run.attempts(), {"s0": 1, "s1": 2}, "attempts")
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        first = expect_whole_checkpoints(run)
    finish(bed, "lost", first, **options)
