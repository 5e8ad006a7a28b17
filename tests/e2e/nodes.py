"""Hosts that fail twice: the run cordons them and replaces them by a checked spare. Later runs refuse them until
`sortie nodes uncordon`."""

import json
import os
import signal

from harness import SORTIE, Run, check, equal, run_to_end
from restart import RESTART as QUICK_RESTART
from restart import events, ranks_of

# Heartbeats are not the subject: with a long timeout no busy host is lost and blamed.
RESTART = {**QUICK_RESTART, "runner.heartbeat_interval": "2s", "runner.heartbeat_timeout": "20s"}
SLEEP = ("sh", "-c", "exec sleep 1000")


def sortie(*arguments):
    done = run_to_end(SORTIE, *arguments)
    return done.returncode, done.stdout + done.stderr


def kill_rank(run, attempt, host, count):
    ranks = ranks_of(run, attempt, count)
    pid = next(pid for where, pid in ranks.values() if where == host)
    os.kill(pid, signal.SIGKILL)


def scenario_host_blamed_twice_is_cordoned_and_a_spare_takes_its_place(bed):
    with Run(bed, *SLEEP, hosts="h[01-02]", slots=1,
             settings={**RESTART, "recovery.spares": '["h03 slots=1"]'}) as run:
        kill_rank(run, 1, "h02", 2)
        equal({host for host, _ in ranks_of(run, 2, 2).values()}, {"h01", "h02"}, "hosts after one blame")
        kill_rank(run, 2, "h02", 2)
        equal({host for host, _ in ranks_of(run, 3, 2).values()}, {"h01", "h03"}, "hosts after two")
        equal([event["blamed"] for event in events(run, "attempt_end")], ["h02", "h02"], "who was blamed")
        store = json.loads(sortie("nodes", "ls", "--json")[1])
        equal([(one["host"], one["run"], one["blames"]) for one in store["cordoned"]], [("h02", run.id(), 2)],
              "cordoned hosts")
        run.signal(signal.SIGINT)
        equal(run.wait(40), 130, "exit code")
    bed.expect_nothing_left(15)
    code, text = sortie("run", "--hosts", "h[01-02]", "--ssh-config", bed.ssh_config, "--", "true")
    equal(code, 2, "exit code of a run on a cordoned host")
    check("h02 is cordoned by " in text and "ended by signal 9" in text, text)
    code, text = sortie("nodes", "test", "h02", "--ssh-config", bed.ssh_config)
    check(code in (0, 1), f"nodes test: {code}: {text}")
    equal(sortie("nodes", "uncordon", "h02")[0], 0, "uncordon")
    equal(sortie("plan", "--hosts", "h[01-02]", "--", "true")[0], 0, "plan")


def scenario_spare_that_is_not_fit_does_not_join(bed):
    """All hosts have the program except h03, the first spare."""
    program = "/tmp/sortie-e2e-job"
    for host in ("h01", "h02", "h04"):
        bed.run_in(host, "sh", "-c", f"printf '#!/bin/sh\\nexec sleep 1000\\n' > {program}; chmod +x {program}")
    try:
        with Run(bed, program, hosts="h[01-02]", slots=1,
                 settings={**RESTART, "recovery.spares": '["h[03-04] slots=1"]'}) as run:
            for attempt in (1, 2):
                kill_rank(run, attempt, "h02", 2)
            equal({host for host, _ in ranks_of(run, 3, 2).values()}, {"h01", "h04"}, "hosts")
            run.wait_for_text(r"spare h03 is not fit: .*program")
            run.signal(signal.SIGINT)
            equal(run.wait(40), 130, "exit code")
    finally:
        for host in ("h01", "h02", "h04"):
            bed.run_in(host, "rm", "-f", program)
    bed.expect_nothing_left(15)


def expect_blames(runs, cordoned):
    store = json.loads(sortie("nodes", "ls", "--json")[1])
    equal([(one["host"], one["class"], one["times"]) for one in store["blames"]], [("h02", "software", 1)] * runs, "blames")
    equal([one["host"] for one in store["cordoned"]], cordoned, "cordoned hosts")


def scenario_host_blamed_in_several_runs_is_cordoned(bed):
    """One failure in each run, as for a host that fails repeatedly over weeks. Runs without restarts record the blame but do not cordon."""
    chosen = {"runner.grace": "1s", "recovery.cordon_runs": 2}
    for number in (1, 2):
        with Run(bed, *SLEEP, hosts="h[01-02]", slots=1, settings=chosen) as run:
            kill_rank(run, 1, "h02", 2)
            equal(run.wait(40), 137, "exit code")
            expect_blames(number, cordoned=[])
    with Run(bed, *SLEEP, hosts="h[01-02]", slots=1, settings={**RESTART, **chosen}) as run:
        kill_rank(run, 1, "h02", 2)
        ranks_of(run, 2, 2)  # the run has no other host
        run.signal(signal.SIGINT)
        equal(run.wait(40), 130, "exit code")
        expect_blames(3, cordoned=["h02"])
    text = sortie("nodes", "ls")[1]
    check("blamed by 3 runs within" in text, text)
    code, text = sortie("run", "--hosts", "h[01-02]", "--ssh-config", bed.ssh_config, "--", "true")
    equal(code, 2, "exit code of a run on a cordoned host")
    equal(sortie("nodes", "uncordon", "h02")[0], 0, "uncordon")
    equal(json.loads(sortie("nodes", "ls", "--json")[1])["blames"], [], "blames of a host that is well")
    bed.expect_nothing_left(15)
