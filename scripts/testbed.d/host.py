"""Turns a forked child into a host: own UTS, mount, IPC and PID namespaces in a network namespace that
exists already, private /tmp, /run, /dev/shm, home and logs, and sshd as its pid 1."""

import ctypes
import os
import signal
import socket
from pathlib import Path

import bed as bed_module
import engine as engine_module
from bed import HOME, PROJECT

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18

libc = ctypes.CDLL(None, use_errno=True)
PRIVATE = ("/run", "/dev/shm", "/var/log", "/tmp")


def checked(value, what):
    if value != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind=None, flags=0, data=None):
    encode = lambda text: None if text is None else str(text).encode()
    checked(libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)),
            f"mount {source} on {target}")


def bind(source, target):
    mount(source, target, flags=MS_BIND | MS_REC)


def sshd_config():
    return "\n".join([
        "HostKey /run/testbed/host_key", "PidFile /run/testbed.pid", "UsePAM no", "StrictModes no",
        "AuthorizedKeysFile /run/testbed/authorized_keys", "PasswordAuthentication no",
        "KbdInteractiveAuthentication no", "AcceptEnv LANG LC_*",
        "Subsystem sftp /usr/lib/openssh/sftp-server"]) + "\n"


def start(bed, number, uid, gid, engine=""):
    """Forks the host's pid 1 and returns its pid as the bastion sees it."""
    read_end, write_end = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            os.close(read_end)
            os.setsid()
            with open(f"/run/netns/{bed.netns(number)}") as namespace:
                checked(libc.setns(namespace.fileno(), CLONE_NEWNET), "setns")
            checked(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID), "unshare")
            init = os.fork()
            if init == 0:
                become_host(bed, number, uid, gid, engine)
            os.write(write_end, str(init).encode())
            os._exit(0)
        except BaseException as error:  # the parent reports it; this copy must not continue
            os.write(write_end, f"!{error}".encode())
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(middle, 0)
    if not answer.isdigit():
        bed_module.fail(f"{bed.host_name(number)}: {answer.lstrip('!') or 'its first process died'}")
    return int(answer)


def become_host(bed, number, uid, gid, engine):
    """Runs as pid 1 of the new host and ends in exec of sshd."""
    log = None
    try:
        log = os.open(bed.host_dir(number) / "sshd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        prepare_mounts(bed, number, uid, gid)
        if engine:
            engine_module.prepare(engine)
        socket.sethostname(bed.host_name(number))
        for number_of_signal in range(1, 32):
            if number_of_signal not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number_of_signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        null = os.open("/dev/null", os.O_RDWR)
        for target, source in ((0, null), (1, null), (2, log)):
            os.dup2(source, target)
        os.closerange(3, 1024)
        os.umask(0o022)
        os.chdir("/")
        os.execve("/usr/sbin/sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", "/run/testbed/sshd_config"],
                  {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    except BaseException as error:
        if log is not None:
            os.write(log, f"testbed: {error}\n".encode())
        os._exit(1)


def prepare_mounts(bed, number, uid, gid):
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    own = bed.host_dir(number)
    bind(own / "home", HOME)
    bind(bed.dir / "hosts.txt", "/etc/hosts")
    bind(bed.dir / "resolv.conf", "/etc/resolv.conf")
    # File descriptors keep the folders that must stay visible, while the private tmpfs are mounted over them.
    kept = [(path, os.open(path, os.O_PATH)) for path in (PROJECT, bed.shared)]
    own_descriptor = os.open(own, os.O_PATH)
    for path in PRIVATE:
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV,
              "mode=" + ("1777" if path in ("/tmp", "/dev/shm") else "0755"))
    for path, descriptor in kept:
        if any(path.is_relative_to(private) for private in PRIVATE):
            path.mkdir(parents=True, exist_ok=True)
            bind(f"/proc/self/fd/{descriptor}", path)
    Path("/run/testbed").mkdir()
    bind(f"/proc/self/fd/{own_descriptor}", "/run/testbed")
    for path in ("/run/sshd", "/run/lock", "/run/user"):
        Path(path).mkdir()
    Path(f"/run/user/{uid}").mkdir(mode=0o700)
    os.chown(f"/run/user/{uid}", uid, gid)


def join_cgroup(bed, number, pid, uid, gid):
    """Moves the process to a cgroup v2 that the test user may subdivide, as systemd makes for a login session."""
    path = bed.cgroup / bed.host_name(number)
    path.mkdir(parents=True, exist_ok=True)
    for entry in (path, path / "cgroup.procs", path / "cgroup.subtree_control", path / "cgroup.threads"):
        os.chown(entry, uid, gid)
    (path / "cgroup.procs").write_text(str(pid))
