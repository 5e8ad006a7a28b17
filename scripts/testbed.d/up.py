"""`testbed up N` and `testbed down`."""

import fcntl
import json
import os
import pwd
import re
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import engine as engine_module
import host
from bed import (HOME, MAX_HOSTS, PROJECT, USER, Lock, check_machine, fail, ip_batch, note, output)

START_TIMEOUT = 25.0


def up(bed, count, delegated, engine=""):
    check_machine()
    if not 1 <= count <= MAX_HOSTS:
        fail(f"up {count}: a bed has 1 to {MAX_HOSTS} hosts")
    if engine:
        engine_module.check_installed(engine)
    uid, gid = ensure_user()
    check_reachable(PROJECT, uid)
    with Lock():
        # Installed before anything is made, so that a signal at any moment removes what was made.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, raise_interrupt)
        try:
            clear(bed)
            build(bed, count, uid, gid, delegated, engine)
        except BaseException as error:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            logs = [] if isinstance(error, KeyboardInterrupt) else sshd_complaints(bed)
            clear(bed)
            for line in logs:
                note(line)
            raise


def raise_interrupt(number, _frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


def ensure_user():
    # For beds that come up at the same time on a new machine: useradd checks the name before it takes its own lock, so
    # each of them would make the user again, with another uid.
    with open("/run/lock/sortie-testbed-user", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            entry = pwd.getpwnam(USER)
        except KeyError:
            # '*' is no valid password hash, but does not lock the account: without PAM, sshd refuses locked accounts.
            output("useradd", "--no-create-home", "--home-dir", HOME, "--shell", "/bin/sh", "--password", "*",
                   "--comment", "Sortie testbed", USER)
            entry = pwd.getpwnam(USER)
        os.makedirs(HOME, exist_ok=True)
    return entry.pw_uid, entry.pw_gid


def check_reachable(path, uid):
    """The test user must be able to read the project at the path that it has here."""
    for folder in [*reversed(path.parents), path]:
        mode = folder.stat()
        needed = stat.S_IXUSR if mode.st_uid == uid else stat.S_IXOTH
        if not mode.st_mode & needed:
            fail(f"{folder} (mode {stat.S_IMODE(mode.st_mode):04o}) keeps the test user {USER} out of the"
                 f" project {path}; run: chmod o+x {folder} - or put the project elsewhere, for example"
                 " /srv/sortie")


def build(bed, count, uid, gid, delegated, engine):
    started = time.monotonic()
    numbers = range(1, count + 1)
    subnet = free_subnet()
    write_files(bed, numbers, subnet, uid, gid, engine)
    make_network(bed, numbers, subnet)
    pids = {}
    for number in numbers:
        pids[number] = host.start(bed, number, uid, gid, engine)
        (bed.host_dir(number) / "init.pid").write_text(f"{pids[number]}\n")
        if number <= delegated:
            host.join_cgroup(bed, number, pids[number], uid, gid)
    wait_for_sshd(bed, {number: f"{subnet}.{number}" for number in numbers})
    if engine:
        engine_module.start_all(bed, numbers, engine)
    note(f"{count} host{'s' if count > 1 else ''} up in {time.monotonic() - started:.1f} s"
         f" (bed {bed.id!r}, {subnet}.1 - {subnet}.{count})")


def free_subnet():
    used = set(re.findall(r"inet 10\.213\.(\d+)\.", output("ip", "-4", "-o", "addr")))
    for third in range(256):
        if str(third) not in used:
            return f"10.213.{third}"
    fail("all of 10.213.0.0/16 is in use; remove beds that you no longer need (SORTIE_TESTBED_ID=ID scripts/testbed down)")


def write_files(bed, numbers, subnet, uid, gid, engine):
    bed.dir.mkdir(parents=True)
    bed.shared.mkdir()
    os.chown(bed.shared, uid, gid)
    hosts = {number: (bed.host_name(number), f"{subnet}.{number}") for number in numbers}
    (bed.dir / "bed.json").write_text(json.dumps({"count": len(hosts), "subnet": subnet, "engine": engine}) + "\n")
    (bed.dir / "hosts.txt").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + "".join(
        f"{address} {name}\n" for name, address in hosts.values()))
    # No name server listens there, so the lookup of a name that is not in hosts.txt fails at once, not after some seconds.
    (bed.dir / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    make_key(bed.identity, f"{USER} of bed {bed.id}").wait()
    public = bed.identity.with_suffix(".pub").read_text()
    makers = []
    for number in numbers:
        own = bed.host_dir(number)
        (own / "home").mkdir(parents=True)
        os.chown(own / "home", uid, gid)
        (own / "sshd_config").write_text(host.sshd_config())
        (own / "authorized_keys").write_text(public)
        makers.append(make_key(own / "host_key", bed.host_name(number)))
    for maker in makers:
        if maker.wait() != 0:
            fail("ssh-keygen could not make a host key")
    bed.known_hosts.write_text("".join(
        f"{name},{address} {(bed.host_dir(number) / 'host_key.pub').read_text()}"
        for number, (name, address) in hosts.items()))
    common = (f"  User {USER}\n  IdentityFile {bed.identity}\n  IdentitiesOnly yes\n"
              f"  UserKnownHostsFile {bed.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
              "  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n")
    bed.ssh_config.write_text("".join(
        f"Host {name}\n  HostName {address}\n{common}\n" for name, address in hosts.values()))


def make_key(path, comment):
    return subprocess.Popen(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
                            stdin=subprocess.DEVNULL)


def make_network(bed, numbers, subnet):
    names = [bed.netns(number) for number in numbers]
    ip_batch([f"link add {bed.bridge} type bridge", f"addr add {subnet}.254/24 dev {bed.bridge}",
              f"link set {bed.bridge} up", *[f"netns add {name}" for name in names]])
    Path(f"/proc/sys/net/ipv6/conf/{bed.bridge}/disable_ipv6").write_text("1")
    ip_batch([line for name in names for line in (
        f"link add {name} type veth peer name eth0 netns {name}",
        f"link set {name} master {bed.bridge} addrgenmode none up")])
    workers = []
    for number, name in zip(numbers, names):
        worker = subprocess.Popen(["ip", "-n", name, "-batch", "-"], stdin=subprocess.PIPE, text=True)
        worker.stdin.write(f"link set lo up\nlink set eth0 addrgenmode none up\n"
                           f"addr add {subnet}.{number}/24 dev eth0\nroute add default via {subnet}.254\n")
        worker.stdin.close()
        workers.append(worker)
    for worker in workers:
        if worker.wait() != 0:
            fail("ip could not configure a host's network (see above)")


def wait_for_sshd(bed, addresses):
    """Returns when every sshd has sent its version line."""
    deadline = time.monotonic() + START_TIMEOUT
    waiting = dict(addresses)
    with selectors.DefaultSelector() as selector:
        while waiting:
            if time.monotonic() > deadline:
                names = ", ".join(bed.host_name(number) for number in sorted(waiting))
                fail(f"no sshd on {names} after {START_TIMEOUT:.0f} s")
            attempts = {}
            for number, address in waiting.items():
                attempt = socket.socket()
                attempt.setblocking(False)
                attempt.connect_ex((address, 22))
                selector.register(attempt, selectors.EVENT_READ, number)
                attempts[number] = attempt
            until = time.monotonic() + 0.5
            while attempts and time.monotonic() < until:
                for key, _ in selector.select(0.05):
                    try:
                        if key.fileobj.recv(64).startswith(b"SSH-2.0"):
                            waiting.pop(key.data)
                    except OSError:
                        pass  # not listening yet
                    selector.unregister(key.fileobj)
                    attempts.pop(key.data).close()
            for attempt in attempts.values():
                selector.unregister(attempt)
                attempt.close()
            if waiting:
                time.sleep(0.05)


def sshd_complaints(bed):
    lines = []
    for log in sorted((bed.dir / "hosts").glob("*/sshd.log")):
        for line in log.read_text(errors="replace").splitlines():
            if not re.match("Server listening|kex_exchange_id|Connection closed", line):  # our own probes
                lines.append(f"{log.parent.name}: {line}")
    return lines[:10]


def down(bed):
    check_machine()
    with Lock():
        clear(bed)


def clear(bed):
    """Removes everything of this bed, complete or left by a crash."""
    deadline = time.monotonic() + 15
    while True:
        alive = [pid for pids in bed.pids_by_netns().values() for pid in pids]
        if not alive:
            break
        if time.monotonic() > deadline:
            fail(f"processes {alive[:10]} of bed {bed.id!r} do not end; look at /proc/PID/stack")
        for pid in alive:  # when pid 1 ends, the kernel kills its whole PID namespace
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    for path in bed.cgroups():
        remove_cgroup(path)
    links = set(re.findall(rf"^\d+: (st-{bed.id}-(?:n\d\d|br))[@:]", output("ip", "-o", "link"), re.M))
    ip_batch([f"link del {name}" for name in sorted(links)])
    ip_batch([f"netns del {path.name}" for path in sorted(Path("/run/netns").glob(f"st-{bed.id}-n[0-9][0-9]"))])
    if bed.dir.exists():
        shutil.rmtree(bed.dir)


def remove_cgroup(path, deadline=5.0):
    until = time.monotonic() + deadline
    while path.exists():
        for folder, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        if path.exists() and time.monotonic() > until:
            fail(f"{path} can not be removed: a process is still in it")
        time.sleep(0.01)
