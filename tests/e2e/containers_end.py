"""Every way in which a run in containers ends: the verdict is right, and no process and no container is left on any host.

`ROWS` is the kill matrix of matrix.py for containers; ends that concern a whole engine are separate scenarios."""

import concurrent.futures
import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass

from adopt import HOLD, adopt, all_say, lose_supervisor
from boxes import RUNNING, ContainerBed, boxed, table
from detach import Detached, ended
from harness import HOSTS, PATIENCE, Gates, check, equal, executable_of, parent_of, wait_until
from machine_clock import now

import engine

__all__ = ["ContainerBed"]
TERM, INT, KILL, STOP = signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP
TIMING = {"runner.grace": "1s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "8s", "runner.mpi": "off"}
# Daemons of all kinds, as in runs without containers: they must not outlive the rank, nor the container them.
FAMILY = ("setsid sleep 1000 >/dev/null 2>&1 & (setsid sleep 1000 >/dev/null 2>&1 &); (env -i setsid sleep 1000 &) >/dev/null 2>&1;"
          " echo up; exec sleep 1000")
STUBBORN = "trap '' TERM INT HUP; echo up; while :; do sleep 1; done"
AT_ONCE = 5
BUSY = 2  # factor for all time limits, because rows and four engines share the processors


@dataclass
class Row:
    name: str
    victim: object  # (bed, run, {rank: (host, pid)}) -> None: makes the fault
    exit_code: int
    seconds: float  # limit, from the fault to the exit of the launcher
    says: str = ""
    program: str = FAMILY
    scope: str = "host"


def send(number, who):
    """Returns a function for Row.victim: sends the signal to the process that `who` finds, by the run and its rank 0."""
    def act(bed, run, ranks):
        os.kill(who(bed, run, *ranks[0]), number)
    return act


def launcher(_bed, run, _host, _rank):
    return run.process.pid


def rank(_bed, _run, _host, pid):
    return pid


def keeper(_bed, _run, _host, pid):
    return parent_of(pid)


def init(_bed, _run, _host, pid):
    return parent_of(parent_of(pid))


def runner(bed, run, host, _rank):
    """Finds the runner by its program and by the run's folder, which it holds open, because no rank is its child. The guard
    of the containers holds the same folder open, but is a child of the runner."""
    found = [pid for pid, *_ in bed.processes(host) if executable_of(pid).startswith("runner-") and holds(pid, run.id())]
    tops = [pid for pid in found if parent_of(pid) not in found]
    check(len(tops) == 1, f"{host}: {len(tops)} runners of run {run.id()}")
    return tops[0]


def holds(pid, run_id):
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if run_id in os.readlink(entry.path):
                    return True
    return False


def container_of(bed, run, host):
    names = bed.docker(host, "ps", "--filter", f"label=sortie.run={run.id()}", "--format", "{{.Names}}").split()
    check(names, f"{host}: no container of run {run.id()}")
    return names[0]


def docker(*arguments):
    def act(bed, run, ranks):
        host = ranks[0][0]
        bed.docker(host, *arguments, container_of(bed, run, host))
    return act


ENDED_OUTSIDE = r"h0\d: .*container .*ended from outside"
ROWS = [
    Row("launcher TERM", send(TERM, launcher), 143, 10, "interrupted by SIGTERM"),
    Row("launcher INT", send(INT, launcher), 130, 10, "interrupted by SIGINT"),
    Row("launcher KILL", send(KILL, launcher), 137, 2),
    Row("launcher KILL, a container per rank", send(KILL, launcher), 137, 2, scope="rank"),
    Row("launcher INT, ranks ignore TERM", send(INT, launcher), 130, 12, "interrupted by SIGINT", program=STUBBORN),
    Row("runner TERM", send(TERM, runner), 5, 10, "the runner received SIGTERM"),
    Row("runner KILL", send(KILL, runner), 5, 15, "lost: "),
    Row("runner KILL, ranks ignore TERM", send(KILL, runner), 5, 15, "lost: ", program=STUBBORN),
    Row("runner STOP", send(STOP, runner), 5, 25, "no heartbeat"),
    Row("rank KILL", send(KILL, rank), 137, 10, r"rank 0 on \w+ .*SIGKILL"),
    Row("rank KILL, a container per rank", send(KILL, rank), 137, 10, r"rank 0 on \w+ .*SIGKILL", scope="rank"),
    Row("keeper KILL", send(KILL, keeper), 137, 10, r"rank 0 on \w+"),
    Row("init KILL", send(KILL, init), 5, 10, ENDED_OUTSIDE),
    Row("docker kill", docker("kill"), 5, 10, ENDED_OUTSIDE),
    Row("docker rm --force", docker("rm", "--force"), 5, 10, ENDED_OUTSIDE),
    Row("docker stop, ranks ignore TERM", docker("stop", "--time", "1"), 5, 12, ENDED_OUTSIDE, program=STUBBORN),
]


def remains(bed, hosts, run_id):
    left = []
    for host in hosts:
        left += [f"{host}: container {name}" for name in
                 bed.docker(host, "ps", "--all", "--filter", f"label=sortie.run={run_id}", "--format", "{{.Names}} {{.Status}}").splitlines()]
        left += [f"{host}: {pid} {command}" for pid, _, _, _, command in bed.processes(host) if run_id in command]
        found = bed.run_in(host, "sh", "-c", f"ls -d /tmp/sortie-*/{run_id}-* /dev/shm/*{run_id}* 2>/dev/null; true")
        left += [f"{host}: {path}" for path in found.split()]
    return left


def play(bed, row, hosts):
    slots = 2 if row.scope == "rank" else 1
    with boxed(bed, "sh", "-c", row.program, hosts=",".join(hosts), slots=slots, settings=TIMING, box={"scope": row.scope}) as run:
        wait_until(lambda: run.text().count("] up") == 2 * slots or run.process.poll() is not None, 30, f"{row.name}: ranks that are up")
        check(run.process.poll() is None, f"{row.name}: the run ended before its ranks were up:\n{run.text()}")
        run_id = run.id()
        ranks = bed.ranks(run_id)
        equal(len(ranks), 2 * slots, f"{row.name}: ranks")
        began = now()
        row.victim(bed, run, ranks)
        code = run.wait(BUSY * row.seconds + 10)
        took = now() - began
        check(code == row.exit_code, f"{row.name}: exit code {code}, not {row.exit_code}:\n{run.text()[-1500:]}")
        check(took <= BUSY * row.seconds * PATIENCE, f"{row.name}: took {took:.1f} s")
        check(not row.says or re.search(row.says, run.text()), f"{row.name}: no {row.says!r}:\n{run.text()[-1500:]}")
        # A living launcher has confirmed the cleanup. Otherwise the hosts clean up themselves.
        patience = 20 if row.name.startswith("launcher KILL") or row.name == "runner STOP" else 5
        deadline = now() + patience * PATIENCE
        while True:
            last = now() >= deadline  # read before the query, because an engine may answer slowly
            if not (left := remains(bed, hosts, run_id)):
                break
            check(not last, f"{row.name}: left after {patience} s: {left}")
            time.sleep(0.1)
        return f"{row.name:40} exit code {code:3} after {took:4.1f} s"


def scenario_every_death(bed):
    wanted = os.environ.get("SORTIE_E2E_ROWS", "")
    rows = [row for row in ROWS if not wanted or re.search(wanted, row.name)]
    failures = []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = (("h01", "h03"), ("h02", "h04"))
        jobs = {pool.submit(play, bed, row, pairs[index % 2]): row for index, row in enumerate(rows)}
        for job in concurrent.futures.as_completed(jobs):
            if job.exception():
                failures.append(f"{jobs[job].name}: {job.exception()}")
            else:
                print(job.result(), flush=True)
    check(not failures, "\n".join(failures))


def scenario_out_of_memory(bed):
    """The message names the limit. The cause is the rank that exceeded it, not another one."""
    script = 'if [ $RANK = 1 ]; then echo eating; exec dd if=/dev/zero of=/dev/null bs=400M count=9; fi; sleep 100'
    with boxed(bed, "sh", "-c", script, hosts="h01,h02", slots=1, settings=TIMING, box={"memory": "64MiB"}) as run:
        equal(run.wait(40), 137, "exit code")
        run.expect(r"rank 1 on h02 .*lack of memory")
        run.expect(r"64(\.0)? ?MiB")
        bed.expect_nothing_left(5)


def scenario_ranks_that_leave_daemons(bed):
    """Daemons of a rank that succeeds end with it."""
    with boxed(bed, "sh", "-c", FAMILY.replace("exec sleep 1000", "sleep 0.5; exit 0"), settings=TIMING) as run:
        equal(run.wait(40), 0, "exit code")
        bed.expect_nothing_left(5)


def scenario_exit_code_of_a_rank(bed):
    with boxed(bed, "sh", "-c", "if [ $RANK = 6 ]; then echo last words >&2; sleep 0.5; exit 3; fi; sleep 100", settings=TIMING) as run:
        equal(run.wait(40), 3, "exit code")
        run.expect(r"rank 6 on h04 .*exit code 3")
        equal(run.log(6, "err"), b"last words\n", "stderr of rank 6")
        bed.expect_nothing_left(5)


def scenario_adopted(bed):
    """With a hold, containers survive the loss of the supervisor, and an adopter runs them to their end."""
    go = bed.shared / "adopted-goes-on"
    go.unlink(missing_ok=True)
    script = f"echo up; while ! [ -e {go} ]; do sleep 0.05; done; echo went on; [ $RANK = 0 ] || exit 0; sleep 1; exit 4"
    box = table(mounts=[[str(bed.shared), str(bed.shared)]])
    with Detached(bed, "sh", "-c", script, hosts="h01,h02", slots=1, settings={**TIMING, **HOLD, **box}) as run:
        all_say(run, "up", range(2))
        before = {host: bed.containers(host, *RUNNING) for host in HOSTS[:2]}
        lose_supervisor(run)
        adopter = adopt(run)
        equal({host: bed.containers(host, *RUNNING) for host in HOSTS[:2]}, before, "containers after the adoption")
        go.touch()
        ended(adopter, 30, 4)
        all_say(run, "went on", range(2))
        bed.expect_nothing_left(5)


def scenario_daemon_restarted(bed):
    """With live restore, ranks do not notice a restart of the engine. Without it the engine ends its containers, and the run reports it."""
    engine.command(bed.bed, "h02", "restart", True)
    with Gates(bed) as gates, \
            boxed(bed, "sh", "-c", f"echo up; {gates.wait('restarted')}; echo survived", hosts="h01,h02", slots=1, settings=TIMING,
                  box={"mounts": [[str(bed.shared), str(bed.shared)]]}) as run:
        wait_until(lambda: run.text().count("] up") == 2, 40, "ranks that are up")
        engine.command(bed.bed, "h02", "restart", True)
        gates.open("restarted")
        equal(run.wait(40), 0, "exit code with live restore")
        equal(run.text().count("survived"), 2, "ranks that survived")
        bed.expect_nothing_left(5)
    engine.command(bed.bed, "h02", "restart", False)
    with boxed(bed, "sh", "-c", FAMILY, hosts="h01,h02", slots=1, settings=TIMING) as run:
        wait_until(lambda: run.text().count("] up") == 2, 40, "ranks that are up")
        engine.command(bed.bed, "h02", "restart", False)
        check(run.wait(40) not in (0, 139), "exit code when the engine has ended its containers")
        run.expect(r"h02: .*ended from outside")
        bed.expect_nothing_left(5)


def scenario_daemon_dead_at_the_end(bed):
    """While an engine is down, its containers can not be removed: the run ends in time nevertheless, and the next run removes them."""
    with boxed(bed, "sh", "-c", FAMILY, hosts="h01,h02", slots=1, settings=TIMING) as run:
        wait_until(lambda: run.text().count("] up") == 2, 40, "ranks that are up")
        engine.end_dockerd(bed.bed, "h02", KILL)
        run.signal(INT)
        equal(run.wait(30), 130, "exit code")
        wait_until(lambda: not [line for line in bed.leftovers(["h02"]) if "sleep" in line], 5, "no rank on h02")
        engine.command(bed.bed, "h02", "start", False)
    with boxed(bed, "true", hosts="h02", slots=1, settings=TIMING) as run:
        equal(run.wait(40), 0, "exit code of the next run")
    bed.expect_nothing_left(5)


def scenario_sweep_after_lost_power(bed):
    """A run removes containers of an earlier run whose lease is gone. Those of a living run, and of other programs, stay."""
    labels = ("--label", "sortie.run=20200101-000000-dead", "--label", "sortie.attempt=1", "--label", "sortie.node=0",
              "--label", f"sortie.uid={bed.shared.stat().st_uid}", "--label", "sortie.folder=/tmp/sortie-gone/20200101-000000-dead-1")
    for how in (("run", "--detach"), ("create",)):
        bed.docker("h01", *how, "--network", "none", "--log-driver", "none", *labels, "sortie-test:cpu", "sleep", "1000")
    stranger = bed.docker("h01", "run", "--detach", "--network", "none", "sortie-test:cpu", "sleep", "1000").strip()
    with (Gates(bed) as gates,
          boxed(bed, "sh", "-c", f"echo up; {gates.wait('end')}; echo survived", hosts="h01", slots=1, settings=TIMING,
                box={"mounts": [[str(bed.shared), str(bed.shared), "ro"]]}) as lasting):
        wait_until(lambda: "] up" in lasting.text(), 20, "a rank that is up")
        with boxed(bed, "true", hosts="h01", slots=1, settings=TIMING) as run:
            equal(run.wait(40), 0, "exit code of another run")
        left = bed.docker("h01", "ps", "--all", "--filter", "label=sortie.run=20200101-000000-dead", "--quiet")
        equal(left, "", "containers of the run whose host lost power")
        gates.open("end")
        equal(lasting.wait(20), 0, "exit code of the run beside it")
        lasting.expect("survived")
    equal(bed.containers("h01", *RUNNING), [stranger[:12]], "containers that are not Sortie's")
    bed.docker("h01", "rm", "--force", stranger)


def scenario_ranks_of_8_gone_with_the_launcher(bed):
    """Four hosts with two containers each: after SIGKILL of the launcher nothing is left on any host."""
    with boxed(bed, "sh", "-c", FAMILY, settings=TIMING, box={"scope": "rank"}) as run:
        wait_until(lambda: run.text().count("] up") == 8, 30, "8 ranks that are up")
        equal(sum(len(bed.containers(host, *RUNNING)) for host in HOSTS), 8, "containers")
        run.signal(KILL)
        run.wait(5)
        bed.expect_nothing_left(20)
