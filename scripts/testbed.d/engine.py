"""A container engine per host: containerd, or dockerd with containerd, in the host's namespaces, writing only to a tmpfs
of the host; or rootless podman, which needs no daemon. Engines and their containers end with the host's pid 1; only
cgroups are left."""

import os
import pwd
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import look
from bed import USER, fail

DOCKERD, CONTAINERD, DOCKER = "/usr/sbin/dockerd", "/usr/bin/containerd", "/usr/bin/docker"
STATE = "/run/engine"  # inside the host
PODMAN = "/usr/bin/podman"
DOCKER_SOCKET, CONTAINERD_SOCKET = "/run/docker.sock", "/run/containerd/containerd.sock"
START_TIMEOUT = 60.0
NEEDED = {"docker": (CONTAINERD, DOCKERD, DOCKER), "containerd": (CONTAINERD,), "podman": (PODMAN, "/usr/bin/newuidmap")}
# Disables the plugins that need a device or a folder of the machine.
CONTAINERD_CONFIG = """version = 2
root = "{state}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "{socket}"
gid = {gid}
"""
# podman's default limits are higher than a small machine allows, and its default runtime, crun, needs cgroup v2.
PODMAN_CONFIG = """[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def check_installed(kind):
    for path in NEEDED[kind]:
        if not os.access(path, os.X_OK):
            fail(f"{path} is missing; run: scripts/setup --containers")


def prepare(kind):
    """Runs in a host's mount namespace before its pid 1: mounts the folders that engines write to, and replaces another docker by Debian's."""
    from host import MS_NODEV, MS_NOSUID, bind, mount
    if kind == "podman":
        return
    Path(STATE).mkdir()
    mount("tmpfs", STATE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0711")
    Path("/run/containerd").mkdir(mode=0o711)
    if kind == "docker":
        Path("/etc/docker").mkdir(exist_ok=True)
        mount("tmpfs", "/etc/docker", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")  # dockerd writes its key there
        if os.path.exists("/usr/local/bin/docker"):
            bind(DOCKER, "/usr/local/bin/docker")


def cgroup_parent(bed, number):
    """Returns a cgroup directly below the root, without processes of its own, as cgroup v2 requires. One level deeper, polling
    ranks of several containers have kept all other processes of the machine from running for up to 55 s (kernel 6.18, two cores)."""
    return f"/{bed.cgroup.name}-{bed.host_name(number)}"


def spawn(bed, host, argv, log):
    """Starts a child of the host's pid 1. On the bastion its log is in the host's folder of the bed."""
    script = 'exec >> "/run/testbed/$0" 2>&1; setsid "$@" < /dev/null &'
    done = subprocess.run(look.enter_argv(bed, host, ["/bin/sh", "-c", script, log, *argv], as_root=True),
                          stdin=subprocess.DEVNULL, timeout=30)
    if done.returncode != 0:
        fail(f"{host}: {argv[0]} could not be started (exit code {done.returncode})")


def start_containerd(bed, host):
    root = Path(f"/proc/{bed.init_pid(bed.number(host))}/root")
    (root / STATE.lstrip("/") / "containerd.toml").write_text(
        CONTAINERD_CONFIG.format(state=STATE, socket=CONTAINERD_SOCKET, gid=pwd.getpwnam(USER).pw_gid))
    spawn(bed, host, [CONTAINERD, "--config", f"{STATE}/containerd.toml", "--log-level", "warn"], "containerd.log")


def start_dockerd(bed, host, live_restore=False):
    # dockerd makes no networks: containers use the host's, which is already in a namespace.
    argv = [DOCKERD, "--data-root", f"{STATE}/docker", "--exec-root", f"{STATE}/docker-exec",
            "--pidfile", f"{STATE}/docker.pid", "--host", f"unix://{DOCKER_SOCKET}", "--group", USER,
            "--containerd", CONTAINERD_SOCKET, "--exec-opt", "native.cgroupdriver=cgroupfs",
            "--cgroup-parent", cgroup_parent(bed, bed.number(host)), "--iptables=false", "--ip6tables=false",
            "--bridge=none", "--ip-forward=false", "--ip-masq=false", "--log-level", "warn"]
    spawn(bed, host, argv + (["--live-restore"] if live_restore else []), "dockerd.log")


def start_all(bed, numbers, kind):
    hosts = [bed.host_name(number) for number in numbers]
    if kind == "podman":
        for number in numbers:
            configure_podman(bed.host_dir(number) / "home")
        return
    deadline = time.monotonic() + START_TIMEOUT
    for host in hosts:
        start_containerd(bed, host)
    wait_for(bed, hosts, CONTAINERD_SOCKET, "containerd", deadline)
    if kind == "docker":
        for host in hosts:
            start_dockerd(bed, host)
        wait_for(bed, hosts, DOCKER_SOCKET, "dockerd", deadline)


def configure_podman(home):
    user = pwd.getpwnam(USER)
    limit = lambda which, most: min(value for value in (most, resource.getrlimit(which)[1]) if value >= 0)
    files = {"containers.conf": PODMAN_CONFIG.format(files=limit(resource.RLIMIT_NOFILE, 65536),
                                                     processes=limit(resource.RLIMIT_NPROC, 4096)),
             "storage.conf": '[storage]\ndriver = "overlay"\n'}
    folder = home / ".config/containers"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    for path in (home / ".config", folder, *folder.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)


def wait_for(bed, hosts, path, name, deadline):
    """Returns when all of them accept connections."""
    for host in hosts:
        while not listens(bed, host, path):
            if time.monotonic() > deadline:
                log = bed.host_dir(bed.number(host)) / f"{name}.log"
                lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
                fail("\n  ".join([f"{host}: {name} does not answer after {START_TIMEOUT:.0f} s; its log {log} ends:", *lines]))
            time.sleep(0.02)


def socket_path(bed, host, path=DOCKER_SOCKET):
    """Returns the path on the bastion of an engine's socket, for DOCKER_HOST=unix://..."""
    return f"/proc/{bed.init_pid(bed.number(host))}/root{path}"


def listens(bed, host, path):
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(socket_path(bed, host, path))
            return True
        except OSError:
            return False


def pids(bed, host, executable):
    found = []
    for pid in bed.pids_by_netns().get(bed.netns(bed.number(host)), []):
        try:
            if os.readlink(f"/proc/{pid}/exe") == executable:
                found.append(pid)
        except OSError:
            pass
    return found


def end_dockerd(bed, host, number=signal.SIGTERM, seconds=30):
    """For `stop` and `kill`. After SIGTERM dockerd ends its containers first, unless it was started with live restore."""
    for pid in pids(bed, host, DOCKERD):
        os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while pids(bed, host, DOCKERD):
        if time.monotonic() > deadline:
            fail(f"{host}: dockerd does not end within {seconds} s")
        time.sleep(0.02)


def command(bed, host, action, live_restore):
    kind = bed.settings().get("engine")
    if kind != "docker":
        fail(f"bed {bed.id!r} has no dockerd; run: scripts/testbed up N --docker")
    if action in ("stop", "kill", "restart"):
        end_dockerd(bed, host, signal.SIGKILL if action == "kill" else signal.SIGTERM)
    if action in ("start", "restart"):
        if pids(bed, host, DOCKERD):
            fail(f"{host}: dockerd runs already")
        start_dockerd(bed, host, live_restore)
        wait_for(bed, [host], DOCKER_SOCKET, "dockerd", time.monotonic() + START_TIMEOUT)
    if action == "status":
        print("runs" if pids(bed, host, DOCKERD) else "stopped")


def docker_argv(bed, host, *arguments):
    """Returns the argv of Debian's docker on the bastion for a host's engine."""
    return [DOCKER, "--host", f"unix://{socket_path(bed, host)}", *map(str, arguments)]
