"""Supervisors that are killed while no user is present: the watcher of a detached run starts the next one, and the run
continues as if nothing had happened."""

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

from detach import Detached, counting, ended
from harness import SANITIZED, Gates, check, equal, wait_until
from restart import detached_events

WATCHED = {"recovery.supervisor_restarts": 10}
HOLD = {**WATCHED, "runner.on_launcher_loss": "hold 60s"}
RESTARTS = {**WATCHED, "recovery.max_restarts": 20, "recovery.backoff": "0s", "recovery.no_progress_limit": 0}


def epoch(run):
    return max(int(path.name.rpartition("-")[2]) for path in run.path.glob("supervisor-*"))


def kill_supervisor(run):
    """Kills the living supervisor, and waits until the next one has started."""
    before = epoch(run)
    pid = wait_until(run.supervisors, 20, "a supervisor")[-1]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: epoch(run) > before, 40, f"a supervisor after epoch {before}")


def expect_no_trace(bed, run, killed=()):
    """Checks the hosts and this machine. `killed`: files of killed watchers, which could not remove them."""
    bed.expect_nothing_left(5)
    wait_until(lambda: not run.supervisors() and not run.watchers(), 10, "the end of supervisor and watcher")
    left = [path.name for path in run.path.glob("watcher-*")]
    equal(left, list(killed), "files of watchers")
    def processes():
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes()
                program = os.readlink(path / "exe")
            except OSError:  # gone, or a kernel thread
                continue
            if str(run.folder).encode() in environment and program.endswith("/sortie"):
                found.append(f"{path}: {program}")
        return found
    # A watcher removes its file a moment before it ends.
    wait_until(lambda: not processes(), 5, "the end of all processes of the run")


def scenario_killed_five_times_in_an_attempt(bed):
    """Ranks count all the time: every number is in the logs exactly once, and `attach` and `status` have the run's exit code."""
    limit = 400
    # However long the supervisors take to start, ranks run until the last one has started.
    with Gates(bed) as gates, \
            Detached(bed, *counting(limit, 60, gates, "end", after=limit - 1), settings=HOLD) as run:
        attached = run.start("attach", "--from-start", run.id)
        watcher = run.watchers()
        equal(len(watcher), 1, "watchers")
        for kill in range(5):
            run.wait_for_numbers(20 + 30 * kill)
            kill_supervisor(run)
            wait_until(lambda: len(detached_events(run, "adopted")) == kill + 1, 30, f"adoption {kill + 1}")
            equal(run.watchers(), watcher, "the watcher")
        gates.open("end")
        output = ended(attached, 60, 0)
        check(f"[3 h04] {limit - 1}\n" in output, "attach does not show the last number")
        check("its watcher starts another one" in output, output[-2000:])
        run.expect_counted(limit)
        status = run.status()
        equal((status["state"], status["exit_code"], status["attempt"]), ("ended", 0, 1), "status")
        expect_no_trace(bed, run)


def scenario_exit_code_stays(bed):
    with Gates(bed) as gates, Detached(bed, "sh", "-c", f"{gates.wait('end')}; exit 9", settings=HOLD) as run:
        kill_supervisor(run)
        gates.open("end")
        equal(run.sortie("attach", run.id).returncode, 9, "exit code of attach")
        equal(run.status()["exit_code"], 9, "exit code in status")
        expect_no_trace(bed, run)


def scenario_killed_between_two_attempts(bed):
    """In the pause before attempt 2, and again as soon as attempt 2 is in the journal, before its ranks run."""
    script = 'echo "attempt $SORTIE_ATTEMPT $EXTRA"; test "$SORTIE_ATTEMPT" = 1 && exit 9; '
    settings = {**RESTARTS, **HOLD, "recovery.backoff": "3s", "runner.env": '{EXTRA="more"}'}
    with Gates(bed) as gates, Detached(bed, "sh", "-c", f"{gates.wait('go')}; {script} {gates.wait('end')}", hosts="h[01-02]",
                                       settings=settings) as run:
        gates.open("go")
        wait_until(lambda: detached_events(run, "decision"), 20, "a decision")
        kill_supervisor(run)
        wait_until(lambda: len(detached_events(run, "attempt")) >= 2, 30, "attempt 2")
        kill_supervisor(run)
        gates.open("end")
        attached = run.sortie("attach", run.id, seconds=60)
        equal(attached.returncode, 0, f"exit code ({attached.stderr[-1000:]})")
        numbers = [event["attempt"] for event in detached_events(run, "attempt")]
        equal(numbers, list(range(1, len(numbers) + 1)), "attempts")
        # One more for each kill before the ranks of an attempt ran: for the second kill, and for the first if it was late.
        check(2 <= len(numbers) <= 4, f"attempts {numbers}")
        check(not any(event.get("blamed") for event in detached_events(run, "attempt_end")), "a host is blamed")
        said = run.sortie("logs", run.id).stdout
        equal(said.count(f"attempt {numbers[-1]} more"), 2, f"ranks of the last attempt ({said})")
        expect_no_trace(bed, run)


def scenario_without_hold_the_next_attempt_begins(bed):
    """on_launcher_loss = "kill": the ranks end with their supervisor, and the next one starts them again. Three times."""
    with Gates(bed) as gates, Detached(bed, "sh", "-c", f'echo "up $SORTIE_ATTEMPT"; {gates.wait("end")}', hosts="h[01-02]",
                                       settings=RESTARTS) as run:
        for attempt in (1, 2, 3):
            wait_until(lambda: run.sortie("logs", run.id).stdout.count(f"up {attempt}") == 2, 30, f"attempt {attempt}")
            kill_supervisor(run)
        wait_until(lambda: run.sortie("logs", run.id).stdout.count("up 4") == 2, 30, "attempt 4")
        gates.open("end")
        equal(run.sortie("attach", run.id).returncode, 0, "exit code")
        equal([event["class"] for event in detached_events(run, "attempt_end")[:3]], ["hardware"] * 3, "classes")
        expect_no_trace(bed, run)


class OnTerminal(Detached):
    """A detached run that is started by a shell on a separate terminal, which then closes."""

    def sortie(self, *argv, seconds=40):
        if argv[0] != "run":
            return super().sortie(*argv, seconds=seconds)
        master, slave = pty.openpty()
        with open(self.folder / "out", "w+", encoding="utf-8") as out, open(self.folder / "err", "w+", encoding="utf-8") as err:
            # The shell leads a session with that terminal, and gets SIGHUP when the terminal closes.
            process = subprocess.Popen(["setsid", "--ctty", "sh", "-c", '"$@"; echo $? > "$0"; exec sleep 1000', self.folder / "code",
                                        *map(str, self.words(argv))], stdin=slave, stdout=out, stderr=err, env=self.environment)
            os.close(slave)
            try:
                wait_until(lambda: (self.folder / "code").exists() and (self.folder / "code").read_text(), seconds, "the start")
            finally:
                os.close(master)  # SIGHUP
            process.wait(10)
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(argv, int((self.folder / "code").read_text()), out.read(), err.read())


def scenario_terminal_is_gone(bed):
    """The login session that started the run has ended; then its supervisor dies."""
    with Gates(bed) as gates, OnTerminal(bed, "sh", "-c", gates.wait("end"), settings=HOLD) as run:
        watcher = run.watchers()[0]
        fields = Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()
        equal(int(fields[4]), 0, "terminal of the watcher")
        kill_supervisor(run)
        wait_until(lambda: detached_events(run, "adopted"), 20, "an adoption")
        gates.open("end")
        equal(run.sortie("attach", run.id).returncode, 0, "exit code")
        expect_no_trace(bed, run)


def scenario_stop_without_a_supervisor(bed):
    """`stop` in the pause before the next supervisor, while ranks are held."""
    with Detached(bed, "sleep", "1000", settings=HOLD) as run:
        for _ in range(4):
            kill_supervisor(run)
        watcher = run.watchers()[0]
        # The watcher would start the next supervisor after 4 s. While it is stopped it does not notice the death: time for the checks.
        os.kill(watcher, signal.SIGSTOP)
        try:
            os.kill(wait_until(run.supervisors, 20, "a supervisor")[-1], signal.SIGKILL)
            wait_until(lambda: run.status()["state"] == "orphaned", 10, "a run without a supervisor")
            equal(len(bed.ranks()), 4, "ranks that are held")
        finally:
            os.kill(watcher, signal.SIGCONT)
        equal(run.sortie("stop", run.id).returncode, 0, "exit code of stop")
        equal(run.status()["exit_code"], 143, "exit code")
        expect_no_trace(bed, run)


def scenario_watcher_is_killed_first(bed):
    """No other supervisor starts then: ranks are held until a user adopts them, and that supervisor has a watcher again."""
    with Gates(bed) as gates, Detached(bed, "sh", "-c", gates.wait("end"), settings=HOLD) as run:
        os.kill(run.watchers()[0], signal.SIGKILL)
        os.kill(run.supervisor(), signal.SIGKILL)
        wait_until(lambda: run.status()["state"] == "lost", 10, "a lost run")
        equal(len(bed.ranks()), 4, "ranks that are held")
        adopter = run.start("attach", "--adopt", run.id)
        wait_until(lambda: detached_events(run, "adopted") and run.watchers(), 20, "another supervisor with a watcher")
        kill_supervisor(run)
        gates.open("end")
        ended(adopter, 30, 0)
        expect_no_trace(bed, run, killed=["watcher-1"])


def scenario_watcher_costs_next_to_nothing(bed):
    """Private memory (Pss counts a shared page by its share), and CPU time while the watcher waits."""
    with Gates(bed) as gates, Detached(bed, "sh", "-c", gates.wait("end"), settings=HOLD) as run:
        watcher = run.watchers()[0]

        def ticks():
            fields = Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        def memory():
            rows = dict(line.split(":") for line in Path(f"/proc/{watcher}/smaps_rollup").read_text().splitlines()[1:])
            return {name: int(rows[name].split()[0]) for name in ("Rss", "Pss", "Private_Dirty", "Private_Clean")}

        def switches():
            text = Path(f"/proc/{watcher}/status").read_text()
            return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)

        def settled():  # its start is over
            first = switches()
            time.sleep(0.5)
            return switches() == first

        wait_until(settled, 20, "half a second without a context switch")
        before, woken = ticks(), switches()
        wait_until(lambda: time.sleep(2) or True, 5, "two seconds")
        equal(switches(), woken, "context switches of a watcher that waits")
        equal(ticks(), before, "clock ticks of a watcher that waits")
        idle = memory()
        kill_supervisor(run)
        wait_until(lambda: detached_events(run, "adopted"), 20, "an adoption")
        after = memory()
        print(f"watcher: KiB {json.dumps(idle)}, after a death {json.dumps(after)}, {ticks()} clock ticks in all", flush=True)
        check(SANITIZED or after["Private_Dirty"] + after["Private_Clean"] <= 4096, f"memory of the watcher's own: {after} KiB")
        gates.open("end")
        equal(run.sortie("attach", run.id).returncode, 0, "exit code")
