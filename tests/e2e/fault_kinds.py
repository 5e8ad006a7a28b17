"""Kinds of faults in a training, each made as it occurs in practice: by a signal, by the kernel's OOM killer, by a link, by a
full disk. `make` injects a fault, waits for its consequences, and returns what it cost."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from endings import MEMORY_GROUPS
from harness import PATIENCE, SANITIZED, Failure, check, parent_of, run_to_end
from reconnect import fill

# Settings that the kinds below need: a limit for hangs, a hold, many restarts without pause.
HANG_LIMIT = 5
HOLD = 15
MOST_MEMORY = (4 if SANITIZED else 1) << 30  # a cgroup with a larger limit is not filled: it may contain other processes
SETTINGS = {"runner.grace": "3s", "runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "3s",
            "runner.ssh.connect_timeout": "4s", "runner.on_launcher_loss": f'"hold {HOLD}s"', "watchdog.hang_timeout": f"{HANG_LIMIT}s",
            "recovery.max_restarts": 200, "recovery.backoff": "0s", "recovery.no_progress_limit": 5, "recovery.cordon": "false",
            "recovery.restart_on": '["app", "software", "hardware", "hang", "oom", "preempted"]'}


@dataclass
class Struck:
    text: str
    time: float
    # Called repeatedly. True once the fault has passed without ending the attempt. May also act, for example restore a link.
    over: Callable[[], object] = lambda: False
    found: str = ""  # event in the journal that reports the fault if the attempt does not end


@dataclass
class Kind:
    strike: Callable
    classes: tuple  # permitted classes of the attempt that it ends
    goes_on: bool = False  # the attempt may survive it
    seconds: float = 10  # limit, from the fault to the decision


@dataclass
class Outcome:
    kind: str
    text: str
    found: str  # class of the attempt, or the event that reported the fault; "-": none expected
    delay: float | None  # seconds to the decision, or to the next supervisor; None: there was none
    to_step: float  # seconds from there, or from the fault's end, to the next new step
    lost: int  # steps


class Scene:
    """The run in which faults are made, its number of ranks `world`, and two small filesystems, or None: `save_disk`, `state_disk`."""

    def __init__(self, run, world, save_disk=None, state_disk=None):
        self.run, self.bed, self.world = run, run.bed, world
        self.save_disk, self.state_disk = save_disk, state_disk

    def victim(self, chance, hosts=None):
        ranks = self.run.ranks(self.world)
        rank = chance.choice(sorted(rank for rank, (host, _) in ranks.items() if not hosts or host in hosts))
        return rank, *ranks[rank]

    def a_host(self, chance, hosts=None):
        return self.victim(chance, hosts)[1]


def by_signal(*numbers):
    def strike(scene, chance, hosts, _undo):
        rank, host, pid = scene.victim(chance, hosts)
        number = chance.choice(numbers)
        struck = Struck(f"{number.name} to rank {rank} on {host}", time.time())
        os.kill(pid, number)
        return struck
    return strike


def kill_runner(scene, chance, hosts, _undo):
    rank, host, pid = scene.victim(chance, hosts)
    struck = Struck(f"SIGKILL to the runner of {host}", time.time())
    os.kill(parent_of(parent_of(pid)), signal.SIGKILL)
    return struck


def kill_supervisor(scene, chance, _hosts, _undo):
    """The watcher starts the next supervisor. In half of the cases the watcher is killed, too, and a supervisor that was started by hand has
    none: then this function adopts the run."""
    run = scene.run
    watchers = run.watchers()
    killed = watchers if chance.random() < 0.5 else []
    struck = Struck("SIGKILL to the supervisor" + (" and its watcher" if killed else ""), time.time(), found="adopted")
    supervisor = run.until(run.supervisor, 20, "a supervisor")
    for pid in [*killed, supervisor]:
        os.kill(pid, signal.SIGKILL)
    if killed or not watchers:
        while run.supervisor():
            time.sleep(0.01)
        run.adopt()
    struck.over = lambda: run.events("adopted", struck.time)
    return struck


# Allocates memory in a cgroup until the kernel has killed a process there.
HOG = """
import sys
def kills():
    lines = open(sys.argv[1] + "/memory.oom_control").read().splitlines()
    return dict(line.split() for line in lines)["oom_kill"]
before, held = kills(), []
while kills() == before and len(held) < 1000:
    held.append(bytearray(b"x") * (2 << 20))
sys.exit(kills() == before)
"""


def group_of(bed, host):
    """Returns the memory cgroup into which endings.memory_limit has put the host."""
    sshd = bed.bed.init_pid(bed.bed.number(host))
    with open(f"/proc/{sshd}/cgroup") as file:
        path = next(line.split(":")[2].strip() for line in file if "memory" in line.split(":")[1].split(","))
    return MEMORY_GROUPS / path.lstrip("/")


def take_all_memory(scene, chance, hosts, _undo):
    """A process on the host allocates all memory that its cgroup may have. The kernel kills a rank, whose OOM score is the highest."""
    rank, host, pid = scene.victim(chance, hosts)
    group = group_of(scene.bed, host)
    check(int((group / "memory.limit_in_bytes").read_text()) <= MOST_MEMORY, f"{host} is in {group}, which has no small limit")
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    def join():
        (group / "cgroup.procs").write_text(str(os.getpid()))
    def kills():
        lines = (group / "memory.oom_control").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])
    before = kills()
    done = run_to_end(sys.executable, "-ISc", HOG, group, preexec_fn=join)
    # The kernel may kill the allocating process as well, before the rank's memory is free.
    neighbour_killed = done.returncode == -signal.SIGKILL
    if (done.returncode != 0 and not neighbour_killed) or kills() - before < 1 + neighbour_killed:
        raise Failure(f"{host}: the kernel killed no rank in {group}: exit code {done.returncode}, {done.stderr[-300:]}, "
                      f"{kills() - before} kills")
    return Struck(f"no memory is left on {host}, for rank {rank}", time.time())


def drop_packets(scene, chance, hosts, undo):
    """Packets from a host to the other hosts are dropped. The bastion stays reachable."""
    bed, host = scene.bed, scene.a_host(chance, hosts)
    others = {where for where, _ in scene.run.ranks(scene.world).values()} - {host}
    def route(word, other):
        bed.run_in(host, "ip", "route", word, "blackhole", f"{bed.address(other)}/32", as_root=True)
    struck = Struck(f"{host} reaches no other host", time.time())
    for other in sorted(others):
        undo.callback(route, "del", other)
        route("add", other)
    return struck


def cut_link(scene, chance, hosts, undo):
    """The link of a host is down for some seconds, less than the hold."""
    bed, run, host = scene.bed, scene.run, scene.a_host(chance, hosts)
    outage = chance.uniform(4, 8)
    struck = Struck(f"the link of {host} is down for {outage:.1f} s", time.time(), found="link_lost")
    undo.callback(bed.link, host, "up")
    bed.link(host, "down")
    def over():
        if time.time() < struck.time + outage:
            return False
        bed.link(host, "up")
        return run.events("link_restored", struck.time, host=host) and list(run.told("step", struck.time + outage))
    struck.over = over
    return struck


def lose_host(scene, chance, hosts, undo):
    """The link of a host is down until the run reports the host lost, then up again."""
    bed, run, host = scene.bed, scene.run, scene.a_host(chance, hosts)
    struck = Struck(f"the link of {host} is down until the host is lost", time.time())
    undo.callback(bed.link, host, "up")
    bed.link(host, "down")
    def over():
        if run.events("host_lost", struck.time, host=host):
            bed.link(host, "up")
        return False
    struck.over = over
    return struck


def fill_save_dir(scene, _chance, _hosts, undo):
    """The disk of save_dir is full until a save has failed."""
    run, filler = scene.run, scene.save_disk / "filler"
    struck = Struck("no room in save_dir", time.time(), found="note")
    undo.callback(filler.unlink, missing_ok=True)
    fill(filler)
    freed = []
    def over():
        if not freed:
            fill(filler)  # again, because a replaced checkpoint has freed its space
            if not any("training continues" in note["text"] for note in run.told("note", struck.time)):
                return False
            filler.unlink()
            freed.append(time.time())
        return list(run.told("checkpoint", freed[0]))
    struck.over = over
    return struck


def fill_state_folder(scene, chance, _hosts, undo):
    run, filler = scene.run, scene.state_disk / "filler"
    seconds = chance.uniform(2, 5)
    struck = Struck(f"no room in the state folder for {seconds:.1f} s", time.time())
    undo.callback(filler.unlink, missing_ok=True)
    fill(filler)
    def over():
        if time.time() < struck.time + seconds:
            return False
        filler.unlink(missing_ok=True)
        return list(run.told("step", struck.time + seconds))
    struck.over = over
    return struck


KINDS = {
    "kill": Kind(by_signal(signal.SIGKILL), ("software",)),
    "crash": Kind(by_signal(signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS), ("software",)),
    "term": Kind(by_signal(signal.SIGTERM), ("preempted",)),
    "stop": Kind(by_signal(signal.SIGSTOP), ("hang",), seconds=HANG_LIMIT + 10),
    "hang": Kind(drop_packets, ("hang",), seconds=HANG_LIMIT + 10),
    "oom": Kind(take_all_memory, ("oom",)),
    "runner": Kind(kill_runner, ("hardware",)),
    "link": Kind(cut_link, ("hang", "hardware"), goes_on=True, seconds=HOLD + 20),
    "lost": Kind(lose_host, ("hardware",), seconds=HOLD + 20),
    "disk": Kind(fill_save_dir, (), goes_on=True, seconds=30),
    "state": Kind(fill_state_folder, (), goes_on=True, seconds=30),
    "supervisor": Kind(kill_supervisor, (), goes_on=True, seconds=20),
}


def make(scene, name, chance, hosts=None):
    """Injects one fault, on one of `hosts` if it concerns a host or a rank. Returns its Outcome. Raises Failure if the consequences are
    not the expected ones."""
    run, kind = scene.run, KINDS[name]
    attempt, before = run.attempt(), time.time()
    committed = max((event["step"] for event in run.told("checkpoint")), default=0)
    with contextlib.ExitStack() as undo:
        struck = kind.strike(scene, chance, hosts, undo)
        def ended():
            return run.events("attempt_end", before, attempt=attempt)  # since before the strike, which may take longer than the rank lives
        patience = kind.seconds + 30  # for the wait only; the limit itself is checked below
        run.until(lambda: ended() or struck.over(), patience, f"{struck.text}: its end")
    if not ended():
        check(kind.goes_on, f"{struck.text}: nothing came of it")
        return outcome_without_end(run, name, struck)
    end = ended()[0]
    check("class" in end, f"{struck.text}: the ranks were done before it")
    check(end["class"] in kind.classes, f"{struck.text}: class {end['class']} ({end['cause']}), not one of {kind.classes}")
    decision = run.until(lambda: run.events("decision", before, attempt=attempt), 30, "a decision")[-1]
    check(decision["action"] == "restart", f"{struck.text}: {decision['reason']}")
    delay = max(0.0, decision["time"] - struck.time)
    check(delay <= kind.seconds * PATIENCE, f"{struck.text}: decided after {delay:.1f} s, not {kind.seconds}")
    reached = max((event["step"] for event in run.told("step", 0.0) if event["time"] < decision["time"]), default=0)
    begun = run.until(lambda: run.events("attempt", decision["time"] - 0.01, attempt=attempt + 1), 60, "the next attempt")[0]
    first = run.wait_for_step_after(begun["time"])
    if first["step"] <= committed:
        raise Failure(f"{struck.text}: goes on with step {first['step']}, though step {committed} was committed")
    return Outcome(name, struck.text, end["class"], delay, first["time"] - decision["time"], max(0, reached + 1 - first["step"]))


def outcome_without_end(run, name, struck):
    passed = time.time()
    told = run.events(struck.found, struck.time) if struck.found not in ("", "note") else []
    step = run.wait_for_step_after(told[-1]["time"] if told else passed)
    delay = told[0]["time"] - struck.time if told else None
    return Outcome(name, struck.text, struck.found or "-", delay, max(0.0, step["time"] - (told[-1]["time"] if told else passed)), 0)
