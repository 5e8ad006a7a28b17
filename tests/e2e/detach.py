"""Runs without a terminal: detached, listed, followed, attached to, stopped. Also what happens to their ranks when the
supervisor is killed, stopped or replaced."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from harness import PATIENCE, PROGRAMS, SORTIE, Gates, check, equal, run_to_end, wait_until
from machine_clock import communicate

COUNTER = ("/usr/bin/python3", "-S", PROGRAMS / "counter.py")
# No watcher, so that a run whose supervisor is killed stays without one.
QUICK = {"runner.grace": "1s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "4s",
         "recovery.supervisor_restarts": 0}


def counting(limit, rate, gates, gate, after):
    """Returns a program that counts to `limit`, but stops at `after` until the gate is open, so that it can not end before."""
    counter = " ".join(map(str, COUNTER))
    return ("sh", "-c", f"{counter} {after} {rate}; {gates.wait(gate)}; exec {counter} {limit} {rate} {after}")


def programs_of(run_folder, kind):
    """Returns the pids of living supervisors or watchers (`kind`), by the files in the run's folder, oldest first."""
    found = []
    for file in sorted(run_folder.glob(f"{kind}-*[0-9]"), key=lambda path: int(path.name.rpartition("-")[2])):
        try:
            pid = json.loads(file.read_text())["pid"]
            if os.readlink(f"/proc/{pid}/exe") == str(SORTIE.resolve()):
                found.append(pid)
        except (OSError, ValueError):  # gone, or the file is being written
            pass
    return found


class Detached:
    """A detached run with its own state folder. Never outlives the scenario."""

    def __init__(self, bed, *program, slots=1, hosts="h[01-04]", settings=(), config=None):
        self.bed = bed
        self.folder = Path(tempfile.mkdtemp(prefix="sortie-e2e-"))
        self.environment = {**os.environ, "XDG_STATE_HOME": str(self.folder)}
        argv = ["run", *([config] if config else []), "--detach", "--ssh-config", bed.ssh_config]
        if hosts:  # else the config has them
            argv += ["--hosts", hosts, "--slots", str(slots)]
        for key, value in {**QUICK, **dict(settings)}.items():
            argv += ["--set", f"{key}={value}"]
        done = self.sortie(*argv, *(["--", *program] if program else []))
        equal(done.returncode, 0, f"exit code of run --detach ({done.stderr})")
        self.id = done.stdout.strip()
        self.path = self.folder / "sortie/runs" / self.id

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        for pid in self.watchers() + self.supervisors():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if error:
            for name in ("events.jsonl", "supervisor.log"):
                if (self.path / name).exists():
                    print(f"--- {name}\n" + (self.path / name).read_text()[-3000:])
        shutil.rmtree(self.folder, ignore_errors=True)

    def words(self, argv):
        return [str(word) for word in (SORTIE, *argv)]

    def sortie(self, *argv, seconds=40):
        return run_to_end(SORTIE, *argv, seconds=seconds, env=self.environment)

    def start(self, *argv):
        return subprocess.Popen(self.words(argv), env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def supervisors(self):
        """Living supervisors of this run, oldest first."""
        return programs_of(self.path, "supervisor")

    def watchers(self):
        return programs_of(self.path, "watcher")

    def supervisor(self):
        return self.supervisors()[-1]

    def status(self):
        return json.loads(self.sortie("status", "--json", self.id).stdout)

    def log(self, rank):
        path = self.path / "logs" / f"rank-{rank}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_numbers(self, count, ranks=range(4)):
        wait_until(lambda: all(self.log(rank).count("\n") >= count for rank in ranks), 40, f"{count} numbers of each rank")

    def expect_counted(self, limit, ranks=range(4)):
        for rank in ranks:
            equal(self.log(rank), "".join(f"{i}\n" for i in range(limit)), f"stdout of rank {rank}")


def ended(process, seconds, code):
    output, _ = communicate(process, seconds * PATIENCE)
    equal(process.returncode, code, f"exit code ({output[-600:]})")
    return output


def scenario_detach_follow_stop(bed):
    with Detached(bed, *COUNTER, "100000", "20") as run:
        equal(run.status()["state"], "running", "state")
        check(run.id in run.sortie("ps").stdout, "the run is not in ps")
        follower = run.start("logs", "-f", "--host", "h02", run.id)
        attached = [run.start("attach", "--from-start", run.id) for _ in range(2)]
        run.wait_for_numbers(20)
        equal(run.sortie("stop", run.id).returncode, 0, "exit code of stop")
        text = ended(follower, 30, 0)
        check("[1 h02] 19\n" in text and "[0 h01]" not in text, "the follower shows other ranks or not its own")
        for process in attached:
            text = ended(process, 30, 143)
            check(all(f"[{rank} h0{rank + 1}] 19\n" in text for rank in range(4)), "attach shows not all ranks")
        bed.expect_nothing_left(10)
        equal(run.sortie("attach", run.id).returncode, 143, "exit code of attach afterwards")


def scenario_killed_supervisor_leaves_nothing(bed):
    with Detached(bed, "sleep", "1000", slots=2) as run:
        attached = run.start("attach", run.id)
        wait_until(lambda: len(bed.ranks()) == 8, 40, "8 ranks")
        time.sleep(0.5)
        os.kill(run.supervisor(), signal.SIGKILL)
        bed.expect_nothing_left(20)
        text = ended(attached, 30, 5)
        check("died without a result" in text, f"attach says {text}")
        check(run.id not in run.sortie("ps").stdout, "a lost run is in plain ps")
        check("lost" in run.sortie("ps", "--all").stdout, "ps --all does not say lost")
        done = run.sortie("attach", "--adopt", run.id)
        equal(done.returncode, 5, "exit code of an adoption where nothing was held")


def scenario_hold_and_adopt(bed):
    """The supervisor dies while all ranks count. After the adoption every number is in the logs exactly once."""
    limit = 300
    with Gates(bed) as gates, Detached(bed, *counting(limit, 20, gates, "adopted", after=200),
                                       settings={"runner.on_launcher_loss": "hold 60s"}) as run:
        attached = run.start("attach", run.id)
        for adoption in range(2):
            run.wait_for_numbers(40 + 60 * adoption)
            os.kill(run.supervisor(), signal.SIGKILL)
            wait_until(lambda: not run.supervisors(), 10, "the end of the supervisor")
            if adoption == 0:
                ended(attached, 30, 5)
            adopter = run.start("attach", "--adopt", run.id)
            wait_until(lambda: run.status()["supervisor"]["epoch"] == adoption + 2
                       and "adopted" in (run.path / "events.jsonl").read_text(), 40, "another supervisor")
        gates.open("adopted")
        output = ended(adopter, 40, 0)
        check(f"[3 h04] {limit - 1}\n" in output, "the adopter does not show the last number")
        run.expect_counted(limit)
        bed.expect_nothing_left(10)


def scenario_hold_keeps_flood(bed):
    """Ranks that write as fast as they can: output in transit is neither lost nor duplicated."""
    lines, killed = 500000, bed.shared / "flood-killed"
    chunk = "".join(f"{i}\n" for i in range(lines))
    killed.unlink(missing_ok=True)
    script = f"n=0; until test -e {killed}; do seq 0 {lines - 1}; n=$((n + 1)); done; echo end $n"
    with Detached(bed, "sh", "-c", script, hosts="h[01-02]", settings={"runner.on_launcher_loss": "hold 60s"}) as run:
        os.kill(run.supervisor(), signal.SIGKILL)
        wait_until(lambda: not run.supervisors(), 10, "the end of the supervisor")
        time.sleep(0.5)  # until the runners' buffers are full
        killed.touch()
        done = run.sortie("attach", "--adopt", run.id)
        equal(done.returncode, 0, f"exit code ({done.stderr[-600:]})")
        for rank in range(2):
            text = run.log(rank)
            count = int(text.rsplit(maxsplit=1)[1])
            check(count > 0 and text == chunk * count + f"end {count}\n", f"rank {rank}: its log of {len(text)} bytes is not what it wrote")
        bed.expect_nothing_left(10)


def scenario_stopped_supervisor_is_fenced(bed):
    limit = 300
    with Gates(bed) as gates, Detached(bed, *counting(limit, 60, gates, "fenced", after=200),
                                       settings={"runner.on_launcher_loss": "hold 60s"}) as run:
        refused = run.sortie("attach", "--adopt", run.id)
        equal(refused.returncode, 2, "exit code of adopting a living supervisor's run")
        run.wait_for_numbers(30)
        old = run.supervisor()
        os.kill(old, signal.SIGSTOP)
        time.sleep(0.3)
        adopter = run.start("attach", "--adopt", run.id)
        wait_until(lambda: len(run.supervisors()) == 2, 40, "a second supervisor")
        wait_until(lambda: "adopted" in (run.path / "events.jsonl").read_text(), 40, "an adoption")
        os.kill(old, signal.SIGCONT)
        wait_until(lambda: old not in run.supervisors(), 30, "the end of the old supervisor")
        check("was adopted by another supervisor" in (run.path / "supervisor.log").read_text(),
              "the old supervisor does not say that it was replaced")
        gates.open("fenced")
        ended(adopter, 40, 0)
        run.expect_counted(limit)
        bed.expect_nothing_left(10)


def scenario_hold_expires(bed):
    with Detached(bed, "sleep", "1000", settings={"runner.on_launcher_loss": "hold 8s"}) as run:
        wait_until(lambda: len(bed.ranks()) == 4, 40, "4 ranks")
        os.kill(run.supervisor(), signal.SIGKILL)
        time.sleep(1.5)
        equal(len(bed.ranks()), 4, "ranks within the hold")
        bed.expect_nothing_left(30)
        done = run.sortie("attach", "--adopt", run.id)
        equal(done.returncode, 5, f"exit code of an adoption that comes too late ({done.stderr})")
        equal(run.sortie("attach", run.id).returncode, 5, "exit code of attach afterwards")


def scenario_adopt_with_a_host_that_comes_back(bed):
    """A host is down when the run is adopted: it is taken over when it is back within the hold, and nothing is lost."""
    limit = 300
    settings = {"runner.on_launcher_loss": "hold 60s", "runner.ssh.connect_timeout": "3s"}
    with Gates(bed) as gates, Detached(bed, *counting(limit, 20, gates, "back", after=200), settings=settings) as run:
        run.wait_for_numbers(20)
        bed.link("h03", "down")
        os.kill(run.supervisor(), signal.SIGKILL)
        wait_until(lambda: not run.supervisors(), 10, "the end of the supervisor")
        adopter = run.start("attach", "--adopt", run.id)
        wait_until(lambda: '"link_lost"' in (run.path / "events.jsonl").read_text(), 40, "the adoption of the others")
        equal({host["name"]: host["state"] for host in run.status()["hosts"]}["h03"], "reconnecting", "state of h03")
        bed.link("h03", "up")
        wait_until(lambda: '"link_restored"' in (run.path / "events.jsonl").read_text(), 40, "h03 is taken over")
        gates.open("back")
        ended(adopter, 60, 0)
        said = (run.path / "supervisor.log").read_text()
        check("adopted 3 of 4 hosts" in said and "h03: connected again" in said, said)
        check("events_missed" not in (run.path / "events.jsonl").read_text(), "events that nobody missed")
        run.expect_counted(limit)
        bed.expect_nothing_left(10)


def scenario_adopt_with_a_host_down(bed):
    """The host does not come back within the hold: the run ends."""
    settings = {"runner.on_launcher_loss": "hold 20s", "runner.ssh.connect_timeout": "5s", "runner.heartbeat_timeout": "6s"}
    with Detached(bed, "sleep", "1000", settings=settings) as run:
        wait_until(lambda: len(bed.ranks()) == 4, 40, "4 ranks")
        bed.link("h03", "down")
        os.kill(run.supervisor(), signal.SIGKILL)
        wait_until(lambda: not run.supervisors(), 10, "the end of the supervisor")
        output = ended(run.start("attach", "--adopt", run.id), 90, 5)
        check("h03: lost" in output and "not reached again in" in output, f"h03 is not named: {output}")
        bed.expect_nothing_left(50)  # h03 ends its ranks itself when its hold expires
