"""Code that the kill matrix and the soak share: a run whose ranks have several kinds of daemons, attached to a terminal or
detached; its processes that can be killed; and the search for what is left of it."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from harness import PATIENCE, PROGRAMS, SORTIE, Run, check, environment_of, executable_of, parent_of, run_to_end
from machine_clock import now, wait_for_end

FAMILY = ("/usr/bin/python3", "-ISE", PROGRAMS / "family.py")
DAEMONS = 3
TIMING = {"runner.grace": "1s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "6s",
          "runner.ssh.connect_timeout": "4s"}


class DetachedRun(Run):
    """`run --detach`, watched by `attach`: the run's exit code and final messages are those of `attach`."""

    options = ("--detach",)
    viewer = None

    def watch(self):
        self.viewer = subprocess.Popen([str(SORTIE), "attach", str(self.folder_of_run())], stdin=subprocess.DEVNULL,
                                       stdout=self.output_file, stderr=subprocess.STDOUT)

    def watch_again(self):
        if not self.viewer or self.viewer.poll() is not None:
            self.watch()
            time.sleep(0.3)

    def interrupt(self):
        run_to_end(SORTIE, "stop", self.folder_of_run(), seconds=30, stdout=self.output_file, stderr=subprocess.STDOUT)

    def supervisor(self):
        facts = sorted(self.folder_of_run().glob("supervisor-*[0-9]"))
        with contextlib.suppress(IndexError, OSError, ValueError):
            pid = json.loads(facts[-1].read_text())["pid"]
            return pid if os.readlink(f"/proc/{pid}/exe") == str(SORTIE.resolve()) else 0
        return 0

    def ended(self):
        return (self.viewer or self.process).poll() is not None

    def exit_code(self, seconds):
        code = wait_for_end(self.viewer, seconds * PATIENCE)
        check(code is not None, f"sortie attach still runs after {seconds} s")
        return code if code >= 0 else 128 - code

    def __exit__(self, *error):
        for pid in (self.supervisor() if self.folder_of_run() else 0, self.viewer.pid if self.viewer else 0):
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        if self.viewer:
            self.viewer.wait()
        super().__exit__(*error)


class AttachedRun(Run):
    """`run` as on a terminal: launcher and supervisor are one process."""

    def watch(self):
        pass

    def interrupt(self):
        self.signal(signal.SIGINT)

    def supervisor(self):
        return self.process.pid if self.process.poll() is None else 0

    def ended(self):
        return self.process.poll() is not None

    def exit_code(self, seconds):
        return self.wait(seconds)


RUNS = {"attached": AttachedRun, "detached": DetachedRun}


def start(bed, mode, hosts, settings=()):
    return RUNS[mode](bed, *FAMILY, hosts=",".join(hosts), slots=1, settings={**TIMING, **dict(settings)})


VICTIMS = {
    "supervisor": lambda run, rank: [run.supervisor()],
    "starter": lambda run, rank: [run.process.pid],
    "viewer": lambda run, rank: [run.viewer.pid],
    "runner": lambda run, rank: [parent_of(parent_of(rank))],
    "rank": lambda run, rank: [rank],
    "keeper": lambda run, rank: [parent_of(rank)],
    "runner and keeper": lambda run, rank: [parent_of(parent_of(rank)), parent_of(rank)],
}


def strike(pids, number):
    """Several processes are stopped before the signal, so that none can react to another's death."""
    check(all(pid > 0 for pid in pids), f"{pids}: one is not there")  # pid 0 would be the process group of this process
    for signals in ([signal.SIGSTOP] if len(pids) > 1 else []), [number]:
        for pid in pids:
            for each in signals:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, each)


def start_time(pid):
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if fields[0] not in "ZX":
            return fields[19]
    return None


def descendants(bed, host, top):
    """Returns {pid: start time} of `top` and all of its descendants."""
    parents = {pid: parent_of(pid) for pid, *_ in bed.processes(host)}
    family, grown = {top}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return {pid: start_time(pid) for pid in family}


class Traces:
    """What a run has on its hosts. Processes are listed while the run lives, so that those that lose their parents are found, too."""

    def __init__(self, bed, run, hosts, ranks):
        self.bed, self.hosts, self.id, self.folder = bed, hosts, run.id(), run.folder_of_run()
        self.families = {host: descendants(bed, host, parent_of(parent_of(pid))) for host, pid in ranks.values()}
        self.port = int(environment_of(ranks[0][1])["MASTER_PORT"]) if 0 in ranks else 0
        self.port_host = ranks[0][0] if 0 in ranks else hosts[0]

    def of_processes(self):
        left = [f"{host}: process {pid}" for host, family in self.families.items() for pid, began in family.items()
                if began and start_time(pid) == began]
        for host in self.hosts:
            left += [f"{host}: {pid} {command}" for pid, _, _, _, command in self.bed.processes(host)
                     if environment_of(pid).get("SORTIE_RUN_ID") == self.id]
        return left

    def of_files(self):
        """Returns the run's folders, sockets, shared memory, cgroups and ports on the hosts."""
        left = []
        for host in self.hosts:
            init = Path(f"/proc/{self.bed.bed.init_pid(self.bed.bed.number(host))}")
            for pattern in (f"tmp/sortie-*/{self.id}-*", f"run/user/*/sortie/{self.id}-*", f"dev/shm/*{self.id}*",
                            f"tmp/*{self.id}*"):
                left += [f"{host}: {path}" for path in (init / "root").glob(pattern)]
            sockets = (init / "net/unix").read_text()
            left += [f"{host}: socket {line.split()[-1]}" for line in sockets.splitlines() if self.id in line]
            if host == self.port_host and self.port:
                if f"@sortie-port-{self.port}\n" in sockets:
                    left.append(f"{host}: the lease of port {self.port}")
                for table in ("net/tcp", "net/tcp6"):
                    for line in (init / table).read_text().splitlines()[1:]:
                        local, state = line.split()[1], line.split()[3]
                        if int(local.rsplit(":", 1)[1], 16) == self.port and state != "06":  # TIME_WAIT
                            left.append(f"{host}: port {self.port}")
        # Does not look below these, because cgroups of other runs appear and disappear meanwhile.
        return left + [str(path) for host in self.hosts
                       for path in (self.bed.bed.cgroup / host).glob(f"sortie-{self.id}-*")]

    def remains(self):
        return self.of_processes() or self.of_files()

    def on_the_bastion(self):
        """Returns sockets and half-written files in the run folder. A supervisor that exits by itself leaves none."""
        return [str(path) for path in self.folder.rglob("*") if path.is_socket() or path.name.startswith(".")]


def left_on(bed, host):
    """Returns everything on the host that a run may have left."""
    root = Path(f"/proc/{bed.bed.init_pid(bed.bed.number(host))}")
    left = bed.leftovers([host])
    for pattern in ("tmp/sortie-[0-9]*/[0-9]*", "dev/shm/*"):
        left += [f"{host}: {path}" for path in (root / "root").glob(pattern)]
    left += [f"{host}: {line.split()[-1]}" for line in (root / "net/unix").read_text().splitlines() if "sortie" in line]
    return left + [str(path) for path in (bed.bed.cgroup / host).glob("sortie-*")]


def left_on_all(bed, hosts):
    return [item for host in hosts for item in left_on(bed, host)]


def family_is_up(run):
    """Whether both ranks have printed "up", which they do after the start of their daemons."""
    with contextlib.suppress(OSError, TypeError, AttributeError):
        return all(b"up\n" in run.log(rank) for rank in range(2))
    return False


def sorties_of(run):
    """Returns the pids of living `sortie` processes with the run's folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and executable_of(int(entry.name)) == "sortie":
            with contextlib.suppress(OSError):
                if str(run.folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def wait_for(condition, seconds, pause=0.15):
    """Returns whether `condition` became true in time. Checks less often than harness.wait_until, because many rows wait at once."""
    deadline = now() + seconds * PATIENCE
    while True:
        # Returns False only after a check that began past the deadline: on a busy machine one takes a second.
        last = now() > deadline
        if condition():
            return True
        if last:
            return False
        time.sleep(pause)
