"""The kill matrix: whichever process dies, and by whichever signal, the verdict is right and nothing is left on any host.

One table: {supervisor, launcher, runner, rank, the rank's parent} x {TERM, INT, HUP, KILL, STOP} x {attached, detached},
runner and keeper together, and a link that goes down. Each row is a separate run over two hosts (one with a cgroup, one
without); several run at once on a separate bed. rows() is the table; victims.py finds the processes."""

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, replace

import victims
from harness import BED_ID, PATIENCE, ROOT, Failure, HostBed, check, equal, parent_of
from machine_clock import now
from victims import DAEMONS, VICTIMS, Traces, wait_for

BED = "m" + BED_ID[1:]
PAIRS = (("h01", "h04"), ("h02", "h05"))
LINK_PAIR = ("h03", "h06")
TRIES = 5  # attempts to strike before ranks run
AT_ONCE = 10
BUSY = 1.5  # factor for all time limits, because the rows share the processors

TERM, INT, HUP, KILL, STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP)


@dataclass
class Row:
    victim: str
    signal: signal.Signals | None
    mode: str
    exit_code: int
    seconds: float  # limit, from the signal to the exit of the process that reports the verdict
    says: str = ""  # pattern in that process's output
    # "goes on": the run continues until Ctrl-C or `sortie stop` ends it; "wakes": SIGCONT once the hosts are empty;
    # "starts": signal before any rank runs; "link": the link of a host goes down, no signal; "same": covered by another row
    how: str = ""

    def name(self):
        return f"{self.mode} {self.victim} {self.signal.name[3:] if self.signal else 'down'}"


def goes_on(victim, number, mode):
    attached = mode == "attached"
    return Row(victim, number, mode, 130 if attached else 143, 12,
               "interrupted by SIGINT" if attached else "stopped by `sortie stop`", "goes on")


def rows():
    for mode in ("attached", "detached"):
        for number, code in ((TERM, 143), (INT, 130), (HUP, 129)):
            name = number.name
            if (mode, number) == ("detached", HUP):
                yield goes_on("supervisor", HUP, mode)
            else:
                yield Row("supervisor", number, mode, code, 10, f"interrupted by {name}")
            yield Row("runner", number, mode, 5, 10, f"the runner received {name}")
            yield Row("rank", number, mode, code, 10, rf"rank 0 on \w+ .*{name}")
            yield goes_on("keeper", number, mode)
        yield Row("supervisor", STOP, mode, 5, 25, "lost: ", "wakes")
        yield Row("runner", KILL, mode, 5, 12, "lost: ")
        yield Row("runner", STOP, mode, 5, 20, "no heartbeat")
        yield Row("rank", KILL, mode, 137, 10, r"rank 0 on \w+ .*SIGKILL")
        yield goes_on("rank", STOP, mode)
        yield Row("keeper", KILL, mode, 137, 10, r"rank 0 on \w+ .*SIGKILL")
        yield goes_on("keeper", STOP, mode)
        # Only a new runner on that host can end what these leave.
        yield Row("runner and keeper", KILL, mode, 5, 15, "lost: ")
        yield Row("runner and keeper", STOP, mode, 5, 20, "no heartbeat")
        yield Row("link", None, mode, 5, 25, r"h0\d: lost: ", "link")
    yield Row("supervisor", KILL, "attached", 137, 10)
    yield Row("supervisor", KILL, "detached", 5, 10, "died without a result")
    for number in (TERM, INT, HUP, KILL, STOP):
        # Attached, the launcher is the supervisor.
        yield Row("launcher", number, "attached", 0, 0, how="same")
        # Detached, the starter exits once all ranks run; later there are viewers.
        yield (Row("starter", number, "detached", 128 + number, 10, f"interrupted by {number.name}", "starts")
               if number in (TERM, INT) else replace(goes_on("starter", number, "detached"), how="starts"))
        yield goes_on("viewer", number, "detached")


def found_ranks(bed, run, row):
    """Waits until both ranks and all their daemons run. Returns the ranks."""
    check(wait_for(lambda: victims.family_is_up(run) or run.process.poll() not in (None, 0), 40), "no 2 ranks are up")
    check(run.process.poll() in (None, 0), f"{row.name()}: the run ended before its ranks were up")
    ranks = bed.ranks(run.id())
    equal(len(ranks), 2, f"{row.name()}: ranks")
    for host, pid in ranks.values():
        check(wait_for(lambda host=host, pid=pid: len(victims.descendants(bed, host, parent_of(pid))) >= 2 + DAEMONS, 10),
              f"{row.name()}: daemons of the rank on {host}")
    return ranks


class TooLate(Failure):
    """On a busy machine all ranks may run before the strike. The row then shows nothing and is tried again."""


def strike_while_starting(bed, run, row):
    """Stops the supervisor before any rank runs, and strikes its starter meanwhile."""
    def has_begun():
        with contextlib.suppress(OSError, TypeError):
            return '"begin"' in (run.folder_of_run() / "events.jsonl").read_text()
        return False
    check(wait_for(has_begun, 20, 0.003), f"{row.name()}: no begin")
    supervisor = run.supervisor()
    check(supervisor, f"{row.name()}: no supervisor")
    os.kill(supervisor, STOP)
    if run.process.poll() is not None or bed.ranks(run.id()):
        raise TooLate(f"{row.name()}: it is not starting any more")
    began = now()
    run.signal(row.signal)
    time.sleep(0.3)
    os.kill(supervisor, signal.SIGCONT)
    if row.signal in (TERM, INT):
        return began, Traces(bed, run, row.hosts, {})
    traces = Traces(bed, run, row.hosts, found_ranks_of_orphan(bed, run, row))
    run.signal(signal.SIGCONT)
    equal(run.wait(15), 0 if row.signal == STOP else 128 + row.signal, f"{row.name()}: exit code of the starter")
    return began, traces


def found_ranks_of_orphan(bed, run, row):
    check(wait_for(lambda: victims.family_is_up(run), 40), f"{row.name()}: it did not go on to start")
    return bed.ranks(run.id())


def strike_while_running(bed, run, row):
    ranks = found_ranks(bed, run, row)
    if row.mode == "detached":
        equal(run.wait(20), 0, f"{row.name()}: exit code of run --detach")
    run.watch()
    traces = Traces(bed, run, row.hosts, ranks)
    if row.mode == "detached":  # the viewer prints that it is attached
        check(wait_for(lambda: "attached to" in run.text(), 20), f"{row.name()}: no viewer")
    began = now()
    if row.how == "link":
        bed.link(row.hosts[1], "down")
    else:
        victims.strike(VICTIMS[row.victim](run, ranks[0][1]), row.signal)
    return began, traces


def expect_no_traces(row, traces, seconds):
    """The failure lists what was left at the deadline, not what is left a moment later."""
    seen = []

    def gone():
        seen[:] = traces.remains()
        return not seen
    check(wait_for(gone, seconds), f"{row.name()}: left behind for {seconds} s: {seen}")


def play(bed, row):
    with victims.start(bed, row.mode, row.hosts, {"runner.mpi": row.mpi}) as run:
        starts = row.how == "starts"
        began, traces = (strike_while_starting if starts else strike_while_running)(bed, run, row)
        if "stop" in row.says or "interrupted by SIGINT" == row.says and row.how == "goes on":
            time.sleep(1.5)
            check(run.supervisor() and len(bed.ranks(run.id())) == 2, f"{row.name()}: the job did not go on")
            if row.victim == "viewer" and row.signal == STOP:
                run.viewer.send_signal(signal.SIGCONT)
            elif row.victim == "viewer":
                equal(run.exit_code(15), 128 + row.signal, f"{row.name()}: exit code of the viewer")
            if row.victim in ("viewer", "starter"):
                run.watch_again()
            began = now()
            run.interrupt()
        if row.how == "wakes":
            expect_no_traces(row, traces, 20)
            os.kill(run.supervisor(), signal.SIGCONT)
        if row.how == "link":
            expect_no_traces(row, traces, 25)
        patience = BUSY * row.seconds + 5
        code = run.wait(patience) if starts and not run.viewer else run.exit_code(patience)
        took = now() - began
        equal(code, row.exit_code, f"{row.name()}: exit code")
        if row.says:
            run.expect(row.says)
        # A living supervisor has confirmed the cleanup. Without one the hosts clean up themselves, within the row's limit.
        killed = row.victim == "supervisor" and row.signal == KILL
        expect_no_traces(row, traces, BUSY * row.seconds if killed else 5)
        took = max(took, now() - began) if killed else took
        check(took <= BUSY * row.seconds * PATIENCE, f"{row.name()}: took {took:.1f} s")
        check(wait_for(lambda: not run.supervisor(), 10), f"{row.name()}: the supervisor is still there")
        if not killed:  # a killed supervisor leaves a dead socket in the run's folder, for `sortie prune`
            equal(traces.on_the_bastion(), [], f"{row.name()}: left in the run folder")
        return took, verdict_of(run, row)


def verdict_of(run, row):
    if "goes on" in (row.how, "goes on" if row.victim == "starter" and row.signal not in (TERM, INT) else ""):
        return "goes on, then: " + row.says
    lines = [line.strip() for line in run.text().splitlines() if row.says and re.search(row.says, line)]
    return lines[-1][:70] if lines else "none (killed); hosts kill their ranks"


def play_in_time(bed, row):
    for _ in range(TRIES - 1):
        with contextlib.suppress(TooLate):
            return play(bed, row)
    return play(bed, row)


def play_link(bed, row, lock):
    with lock:  # one at a time, because all runs on that host share the link
        try:
            return play(bed, row)
        finally:
            bed.link(row.hosts[1], "up")


def testbed(*words):
    subprocess.run([ROOT / "scripts/testbed", *words], env={**os.environ, "SORTIE_TESTBED_ID": BED}, check=True,
                   stdout=subprocess.DEVNULL)


def play_all(bed, table):
    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = {}
        # Long rows first.
        for index, row in enumerate(sorted(table, key=lambda row: -row.seconds)):
            row.hosts = PAIRS[index % 2] if row.how != "link" else LINK_PAIR
            row.mpi = ("off", "auto")[index // 2 % 2]
            jobs[pool.submit(*((play_link, bed, row, lock) if row.how == "link" else (play_in_time, bed, row)))] = row
        for job in concurrent.futures.as_completed(jobs):
            yield jobs[job], job


def scenario_every_death(_):
    began = now()
    testbed("up", "6", "--cgroup", "3")
    failures, lines = [], []
    try:
        bed = HostBed(BED)
        table = list(rows())
        for row in table:
            if row.how == "same":
                lines.append(f"{row.name():34} the launcher is the supervisor: its row")
        for row, job in play_all(bed, [row for row in table if row.how != "same"]):
            if job.exception():
                failures.append(f"{row.name()}: {job.exception()}")
                lines.append(f"{row.name():34} FAILED")
            else:
                took, verdict = job.result()
                lines.append(f"{row.name():34} exit code {row.exit_code:3} after {took:4.1f} s, nothing left; {verdict}")
        print("\n".join(sorted(lines)))
        print(f"{len(lines)} rows in {now() - began:.0f} s")
        check(not failures, "\n".join(failures))
        bed.expect_nothing_left(5)
    finally:
        testbed("down")
