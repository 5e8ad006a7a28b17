"""Every way in which a job ends: the right verdict and exit code, within stated seconds, and nothing left on any host."""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

from harness import BUILD, PROGRAMS, SORTIE, Gates, Run, check, command_of, equal, in_time, parent_of, run_to_end, wait_until, whole_events
from machine_clock import now

SLEEP = ("sleep", "1000")
LONG_GRACE = {"runner.grace": "60s"}  # a run that ends sooner did not wait for SIGKILL
STUBBORN = ("/bin/sh", PROGRAMS / "ignore_term.sh")
DAEMONS = ("/usr/bin/python3", "-S", PROGRAMS / "daemons.py")
DAEMONS_PER_RANK = 6


def wait_for_daemons(bed, run, ranks=8):
    """Waits until all daemons of all ranks run; otherwise, to find none at the end would prove nothing. Returns {rank: (host, pid)}."""
    for rank in range(ranks):
        run.wait_for_text(f"rank {rank} has its daemons")
    # A rank prints this line after its forks; the daemons exec later.
    wait_until(lambda: sum(" daemon-" in line for line in bed.leftovers()) == ranks * DAEMONS_PER_RANK, 20, "all daemons")
    return bed.ranks()


def scenario_rank_killed(bed):
    with Run(bed, *SLEEP, settings=LONG_GRACE) as run:
        host, pid = run.wait_for_ranks(8)[5]
        equal(host, "h03", "host of rank 5")
        os.kill(pid, signal.SIGKILL)
        equal(run.wait(20), 128 + 9, "exit code")
        run.expect(r"rank 5 on h03 .*SIGKILL")
        bed.expect_nothing_left(5)


def scenario_rank_exits_3(bed):
    script = "echo last words of $RANK >&2; if [ $RANK = 6 ]; then sleep 1; exit 3; fi; sleep 1000"
    with Run(bed, "sh", "-c", script) as run:
        equal(run.wait(30), 3, "exit code")
        run.expect(r"rank 6 on h04 .*exit code 3")
        run.expect(r"^\s+(\| )?last words of 6$")  # the report quotes its stderr
        equal(run.log(6, "err"), b"last words of 6\n", "stderr of rank 6")
        bed.expect_nothing_left(5)


def scenario_rank_ignores_term(bed):
    with Run(bed, *STUBBORN, settings={"runner.grace": "1s"}) as run:
        _, pid = run.wait_for_ranks(8)[0]
        run.wait_for_text("rank 7 is stubborn")
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        equal(run.wait(20), 137, "exit code")
        check(time.monotonic() - began >= 0.8, "the grace of 1 s was not granted")
        bed.expect_nothing_left(5)


@contextlib.contextmanager
def program_of_root(bed):
    """Gives a program that makes itself root's, as sudo does, and ignores SIGTERM. The processes that it leaves are ended."""
    path, seconds = bed.shared / "of_root", f"100.{os.getpid()}"

    def alive():
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and command_of(pid) == ["sleep", seconds]]

    shutil.copy(shutil.which("setpriv"), path)
    path.chmod(0o4755)
    words = f"{path} --reuid 0 --regid 0 --clear-groups setsid -f sh -c 'trap \"\" TERM; exec sleep {seconds}'"
    try:
        yield words, alive
    finally:
        for pid in alive():
            os.kill(pid, signal.SIGKILL)
        path.unlink()


def scenario_process_of_root_is_left(bed):
    """On a host without a cgroup, what sudo or a setuid program has left can not be killed. It is named, and hides no exit code."""
    with program_of_root(bed) as (daemon, alive):
        for code in (3, 0):
            script = f"if [ $RANK = 5 ]; then {daemon}; sleep 0.5; exit {code}; fi; [ {code} = 0 ] || sleep 1000"
            began = now()
            with Run(bed, "sh", "-c", script, settings={"runner.grace": "1s"}) as run:
                equal(run.wait(30), code, "exit code")
                in_time(began, 8, "end of the run")
                pid, = alive()
                run.expect(r"h03: left by rank 5: process \d+ \(sleep\) of root can not be killed: Operation not permitted")
                check(any(event["event"] == "unconfirmed" for event in whole_events(run.folder_of_run() / "events.jsonl")), "the journal")
                if code:
                    run.expect(r"rank 5 on h03 .*exit code 3")
            os.kill(pid, signal.SIGKILL)
            bed.expect_nothing_left(5)
        done = run_to_end(SORTIE, "exec", "--hosts", "h03", "--ssh-config", bed.ssh_config, "--",
                          "sh", "-c", f"{daemon}; sleep 0.5; exit 4")
        pid, = alive()
        equal(done.returncode, 4, "exit code of exec")
        check(re.search(r"h03: left by the command: process \d+ \(sleep\) of root can not be killed", done.stderr), done.stderr)
        os.kill(pid, signal.SIGKILL)
        bed.expect_nothing_left(5)

def scenario_rank_of_root_ends_late(bed):
    """A rank that can not be killed is named; when it ends by itself, what it has left is ended with it, daemons of daemons too."""
    with program_of_root(bed) as (daemon, alive):
        of_root = daemon.split(" setsid ")[0]
        script = (f"[ $RANK = 0 ] && {{ sleep 1; exit 3; }}; [ $RANK = 5 ] || exec sleep 1000; "
                  f"setsid sh -c 'setsid sleep 1000 & wait' & exec {of_root} sh -c 'trap \"\" TERM; sleep 6'")
        with Run(bed, "sh", "-c", script, settings={"runner.grace": "1s"}) as run:
            equal(run.wait(30), 3, "exit code")
            run.expect(r"h03: rank 5: process \d+ \(sh\) of root can not be killed: Operation not permitted")
            bed.expect_nothing_left(5)
        equal(alive(), [], "processes of root")


def scenario_setsid_grandchildren_after_success(bed):
    """Daemons of a rank that succeeds end with it."""
    with Run(bed, *DAEMONS, "0") as run:
        equal(run.wait(20), 0, "exit code")
        bed.expect_nothing_left(5)


def scenario_setsid_grandchildren_after_failure(bed):
    with Run(bed, *DAEMONS, "wait", settings={"runner.grace": "1s"}) as run:
        _, pid = wait_for_daemons(bed, run)[3]
        os.kill(pid, signal.SIGKILL)
        equal(run.wait(25), 137, "exit code")
        bed.expect_nothing_left(5)


def scenario_runner_killed(bed):
    with Run(bed, *DAEMONS, "wait", settings={"runner.grace": "1s"}) as run:
        wait_for_daemons(bed, run)
        os.kill(bed.runner("h02"), signal.SIGKILL)
        bed.expect_nothing_left(8, ["h02"])
        equal(run.wait(25), 5, "exit code")
        equal(len(re.findall("h02: lost", run.text())), 1, "times that the loss of h02 is said")
        bed.expect_nothing_left(5)


def scenario_keeper_killed(bed):
    """If a keeper dies, the runner ends the keeper's processes, on a host with a cgroup and on one without."""
    for host, rank in (("h01", 0), ("h03", 4)):
        with Run(bed, *DAEMONS, "wait", settings={"runner.grace": "1s"}) as run:
            where, pid = wait_for_daemons(bed, run)[rank]
            equal(where, host, f"host of rank {rank}")
            os.kill(parent_of(pid), signal.SIGKILL)
            check(run.wait(25) != 0, "exit code 0 although a rank was lost")
            run.expect(f"rank {rank} on {host}")
            bed.expect_nothing_left(5)


def scenario_launcher_killed(bed):
    with Run(bed, *DAEMONS, "wait", settings={"runner.grace": "1s"}) as run:
        wait_for_daemons(bed, run)
        run.signal(signal.SIGKILL)
        equal(run.wait(5), 137, "exit code")
        bed.expect_nothing_left(8)


def scenario_launcher_stopped(bed):
    """A launcher that hangs keeps its connections open: only missing heartbeats reveal it."""
    limit, pause = 8, 4.7  # a pause of more than half the limit is reported; a busy machine makes it longer
    timing = {"runner.grace": "1s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": f"{limit}s"}
    with Run(bed, *SLEEP, settings=timing) as run:
        run.wait_for_ranks(8)
        run.signal(signal.SIGSTOP)
        time.sleep(pause)
        run.signal(signal.SIGCONT)
        run.wait_for_text(r"this launcher did not run for [4-7]\.\d s")
        time.sleep(limit)  # the pause must not end the ranks
        # A busy machine may cause further pauses.
        events = whole_events(run.folder_of_run() / "events.jsonl")
        stalls = [event["seconds"] for event in events if event["event"] == "stalled"]
        equal(sum(pause - 0.6 <= seconds < limit for seconds in stalls), 1, f"pauses in the journal like that one ({stalls})")
        equal(len(bed.ranks(run.id())), 8, "ranks after the pause")
        run.signal(signal.SIGSTOP)
        bed.expect_nothing_left(limit + 10)


def scenario_link_down(bed):
    timing = {"runner.grace": "1s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "5s"}
    with Run(bed, *SLEEP, settings=timing) as run:
        run.wait_for_ranks(8)
        bed.link("h03", "down")
        began = now()
        # The unreachable host ends its ranks itself, while the link is still down.
        bed.expect_nothing_left(15, ["h03"])
        equal(run.wait(25), 5, "exit code")
        in_time(began, 25, "the verdict")
        run.expect(r"h03: lost")
        bed.expect_nothing_left(5)


def scenario_ctrl_c_once(bed):
    script = "trap 'echo rank $RANK tidied up; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    with Run(bed, "sh", "-c", script, settings=LONG_GRACE) as run:
        run.wait_for_ranks(8)
        wait_until(lambda: run.text().count("] up") == 8, 20, "8 ranks that said up")
        run.signal(signal.SIGINT)
        equal(run.wait(20), 130, "exit code")
        for rank in range(8):
            run.expect(f"rank {rank} tidied up")  # SIGTERM is first, and output after it is still shown
        bed.expect_nothing_left(5)


def scenario_ctrl_c_twice(bed):
    with Run(bed, *STUBBORN, settings={"runner.grace": "60s"}) as run:
        run.wait_for_ranks(8)
        run.wait_for_text("rank 7 is stubborn")
        run.signal(signal.SIGINT)
        run.wait_for_text("once more kills them at once")  # two signals that are pending together count as one
        time.sleep(1)
        check(run.process.poll() is None, "ended within the grace although its ranks ignore TERM")
        run.signal(signal.SIGINT)
        equal(run.wait(30), 130, "exit code")
        bed.expect_nothing_left(5)


def scenario_terminated(bed):
    with Run(bed, *SLEEP, settings=LONG_GRACE) as run:
        run.wait_for_ranks(8)
        run.signal(signal.SIGTERM)
        equal(run.wait(20), 143, "exit code")
        bed.expect_nothing_left(5)


def scenario_mpi_abort(bed):
    with Run(bed, BUILD / "bin/e2e_mpi_abort", "5", settings={"runner.grace": "2s"}) as run:
        equal(run.wait(60), 5, "exit code")
        run.expect(r"rank 5 on h03 .*MPI_Abort")
        bed.expect_nothing_left(5)


def scenario_left_without_finalize(bed):
    """The other ranks hang in a barrier; where all ranks leave so, the job has ended well."""
    with Run(bed, BUILD / "bin/e2e_mpi_leave", "5", settings={"runner.grace": "2s"}) as run:
        equal(run.wait(60), 1, "exit code")
        run.expect(r"rank 5 on h03 .*exited with code 0 without MPI_Finalize")
        bed.expect_nothing_left(5)
    with Run(bed, BUILD / "bin/e2e_mpi_leave", "all") as run:
        equal(run.wait(60), 0, "exit code")
        bed.expect_nothing_left(5)


def scenario_program_missing(bed):
    with Run(bed, "/no/such/program") as run:
        equal(run.wait(30), 3, "exit code")
        run.expect(r"/no/such/program")
        bed.expect_nothing_left(5)


def scenario_two_runs_side_by_side(bed):
    """The cleanup of one run does not affect another run on the same hosts."""
    with Gates(bed) as gates, Run(bed, "sh", "-c", gates.wait("end") + "; echo survived") as lasting:
        lasting.wait_for_ranks(8)
        with Run(bed, "sh", "-c", "sleep 1; exit 9") as failing:
            equal(failing.wait(30), 9, "exit code of the failing run")
        gates.open("end")
        equal(lasting.wait(40), 0, "exit code of the other run")
        equal(lasting.text().count("survived"), 8, "ranks of the other run that ended well")


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")  # the memory controller of cgroup v1, if the kernel has it there


@contextlib.contextmanager
def memory_limit(bed, host, limit):
    """Limits the total memory of all processes that sign in to `host` from now on, in bytes. Yields their cgroup."""
    check((MEMORY_GROUPS / "memory.limit_in_bytes").exists(), f"no memory controller of cgroup v1 in {MEMORY_GROUPS}")
    sshd = bed.bed.init_pid(bed.bed.number(host))
    before = [line.rsplit(":", 1)[1] for line in Path(f"/proc/{sshd}/cgroup").read_text().splitlines()
              if "memory" in line.split(":")[1].split(",")]
    group = MEMORY_GROUPS / f"sortie-e2e-{os.getpid()}-{host}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "cgroup.procs").write_text(str(sshd))
        yield group
    finally:
        (MEMORY_GROUPS / before[0].lstrip("/") / "cgroup.procs").write_text(str(sshd))
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), 10, f"nobody left in {group}")
        group.rmdir()


def scenario_rank_killed_for_memory(bed):
    """The kernel's OOM killer acts by the limit of a cgroup that contains a whole host, as set by a batch system."""
    eat = "held = []\nwhile True: held.append(bytearray(1 << 20))"
    script = f"if [ $RANK = 1 ]; then sleep 1; exec python3 -ISc '{eat}'; fi; sleep 1000"
    with memory_limit(bed, "h01", 200 << 20) as group, Run(bed, "sh", "-c", script) as run:
        equal(run.wait(30), 137, "exit code")
        kills = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())["oom_kill"]
        equal(kills, "1", "OOM kills that the kernel counts")
        run.expect(r"rank 1 on h01 .*SIGKILL.*lack of memory")
        events = [json.loads(line) for line in (run.folder_of_run() / "events.jsonl").read_text().splitlines()]
        equal([(event["rank"], event["consequence"]) for event in events if event.get("oom_killed")], [(1, False)],
              "ranks that the OOM killer ended")
        cause = [event for event in events if event["event"] == "cause"]
        equal([(event["what"], event["oom_evidence"]) for event in cause], [("oom", "host")], "first cause")
        bed.expect_nothing_left(5)
