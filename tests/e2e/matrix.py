"""The kill matrix: whoever dies, and however, the verdict is right and nothing is left on any host.

One table. Each row is a run of its own over two hosts (one with a cgroup, one without), several at the same time;
a rank has daemons in three ways. `ROWS` is all there is to extend: victims are the functions of `VICTIMS`."""

import concurrent.futures
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from harness import Run, check, environment_of, equal, parent_of, wait_until

FAMILY = ("setsid sleep 1000 >/dev/null 2>&1 & (setsid nohup sleep 1000 >/dev/null 2>&1 &); "
          "(env -i setsid sleep 1000 >/dev/null 2>&1 &); echo up; exec sleep 1000")
PROCESSES_PER_RANK = 4
TIMING = {"runner.grace": "1s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "4s",
          "runner.mpi": "off"}
AT_ONCE = 6

TERM, INT, HUP, KILL, STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP)


@dataclass
class Row:
    victim: str
    signal: signal.Signals
    exit_code: int
    seconds: float  # from the signal to the end of the launcher
    says: str = ""  # in the output of the launcher
    then: str = ""  # "interrupt": the job goes on, and Ctrl-C ends it; "continue": SIGCONT once the hosts are empty

    def name(self):
        return f"{self.victim} {self.signal.name}"


GOES_ON = {"exit_code": 130, "seconds": 10, "then": "interrupt", "says": "interrupted by SIGINT"}
RUNNER_TOLD = {"exit_code": 5, "seconds": 10}
ROWS = [
    Row("launcher", TERM, 143, 10, "interrupted by SIGTERM"),
    Row("launcher", INT, 130, 10, "interrupted by SIGINT"),
    Row("launcher", HUP, 129, 10, "interrupted by SIGHUP"),
    Row("launcher", KILL, 137, 2),
    Row("launcher", STOP, 5, 25, "lost", then="continue"),
    Row("runner", TERM, **RUNNER_TOLD, says="the runner received SIGTERM"),
    Row("runner", INT, **RUNNER_TOLD, says="the runner received SIGINT"),
    Row("runner", HUP, **RUNNER_TOLD, says="the runner received SIGHUP"),
    Row("runner", KILL, 5, 12, "lost: "),
    Row("runner", STOP, 5, 20, "no sign of life"),
    Row("rank", TERM, 143, 10, r"rank 0 on \w+ .*SIGTERM"),
    Row("rank", INT, 130, 10, r"rank 0 on \w+ .*SIGINT"),
    Row("rank", HUP, 129, 10, r"rank 0 on \w+ .*SIGHUP"),
    Row("rank", KILL, 137, 10, r"rank 0 on \w+ .*SIGKILL"),
    Row("rank", STOP, **GOES_ON),
    Row("keeper", TERM, **GOES_ON),
    Row("keeper", INT, **GOES_ON),
    Row("keeper", HUP, **GOES_ON),
    Row("keeper", KILL, 137, 10, r"rank 0 on \w+ .*SIGKILL"),
    Row("keeper", STOP, **GOES_ON),
    # What only a fresh runner on that host can end: on h01 or h02, by the cgroup.
    Row("runner_and_keeper", KILL, 5, 15, "lost: "),
]
VICTIMS = {
    "launcher": lambda run, rank: [run.process.pid],
    "runner": lambda run, rank: [parent_of(parent_of(rank))],
    "rank": lambda run, rank: [rank],
    "keeper": lambda run, rank: [parent_of(rank)],
    "runner_and_keeper": lambda run, rank: [parent_of(parent_of(rank)), parent_of(rank)],
}


def start_time(pid):
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if fields[0] not in "ZX":
            return fields[19]
    return None


def descendants(bed, host, top):
    """{pid: start time} of `top` and all below it."""
    parents = {pid: parent_of(pid) for pid, *_ in bed.processes(host)}
    family, grown = {top}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return {pid: start_time(pid) for pid in family}


def remains(bed, hosts, run_id, families):
    left = [f"{host}: process {pid}" for host, family in families.items() for pid, began in family.items()
            if began and start_time(pid) == began]
    for host in hosts:
        left += [f"{host}: {pid} {command}" for pid, _, _, _, command in bed.processes(host)
                 if environment_of(pid).get("SORTIE_RUN_ID") == run_id]
        found = bed.run_in(host, "sh", "-c", f"ls -d /tmp/sortie-*/{run_id}-* /dev/shm/*{run_id}* 2>/dev/null; true")
        left += [f"{host}: {path}" for path in found.split()]
    left += [str(path) for path in bed.bed.cgroup.glob(f"**/sortie-{run_id}-*")] if bed.bed.cgroup.exists() else []
    return left


def play(bed, row, hosts):
    with Run(bed, "sh", "-c", FAMILY, hosts=",".join(hosts), slots=1, settings=TIMING) as run:
        wait_until(lambda: run.text().count("] up") == 2 or run.process.poll() is not None, 30, "2 ranks that are up")
        check(run.process.poll() is None, f"{row.name()}: the run ended before its ranks were up")
        run_id = run.id()
        ranks = bed.ranks(run_id)
        equal(len(ranks), 2, f"{row.name()}: ranks")
        families = {}
        for host, pid in ranks.values():
            wait_until(lambda host=host, pid=pid: len(descendants(bed, host, parent_of(pid))) > PROCESSES_PER_RANK, 10,
                       f"{row.name()}: daemons of the rank on {host}")
            families[host] = descendants(bed, host, parent_of(parent_of(pid)))
        began = time.monotonic()
        for pid in (victims := VICTIMS[row.victim](run, ranks[0][1])):
            os.kill(pid, STOP if len(victims) > 1 else row.signal)  # several: none may act on another's death
        if len(victims) > 1:
            for pid in victims:
                os.kill(pid, row.signal)
        if row.then == "interrupt":
            time.sleep(1.5)
            check(run.process.poll() is None, f"{row.name()}: the job did not go on")
            run.signal(signal.SIGINT)
        if row.then == "continue":
            wait_until(lambda: not remains(bed, hosts, run_id, families), 15, f"{row.name()}: empty hosts")
            run.signal(signal.SIGCONT)
        equal(run.wait(row.seconds + 5), row.exit_code, f"{row.name()}: exit code")
        took = time.monotonic() - began
        check(took <= row.seconds, f"{row.name()}: took {took:.1f} s")
        if row.says:
            run.expect(row.says)
        # A launcher that lives has confirmed it; without one the hosts see to it themselves.
        patience = 8 if row.victim == "launcher" and row.signal == KILL else 1
        wait_until(lambda: not remains(bed, hosts, run_id, families), patience,
                   f"{row.name()}: left behind: {remains(bed, hosts, run_id, families)}")
        return f"{row.name():24} exit code {row.exit_code:3} after {took:4.1f} s"


def scenario_every_death(bed):
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = (("h01", "h03"), ("h02", "h04"))
        jobs = {pool.submit(play, bed, row, pairs[index % 2]): row for index, row in enumerate(ROWS)}
        failures = []
        for job in concurrent.futures.as_completed(jobs):
            if job.exception():
                failures.append(f"{jobs[job].name()}: {job.exception()}")
            else:
                print(job.result(), flush=True)
    check(not failures, "\n".join(failures))
