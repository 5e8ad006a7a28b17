"""The names, addresses, files and processes of a bed. Everything that a bed owns can be found by its id alone, so
that `down` also cleans up after a crash that left no state."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

USER = "sortie-test"
HOME = f"/home/{USER}"
MAX_HOSTS = 64
PROJECT = Path(__file__).resolve().parents[2]


class TestbedError(Exception):
    """One line for the user."""


def fail(message):
    raise TestbedError(message)


def output(*argv, stdin=None):
    """Returns the stdout of a command, which must succeed."""
    done = subprocess.run(argv, input=stdin, text=True, capture_output=True)
    if done.returncode != 0:
        fail(f"{' '.join(argv)[:200]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def ip_batch(lines):
    if lines:
        output("ip", "-batch", "-", stdin="\n".join(lines) + "\n")


class Bed:
    def __init__(self, bed_id=None):
        self.id = bed_id or os.environ.get("SORTIE_TESTBED_ID", "bed")
        if not re.fullmatch(r"[a-z0-9]{1,7}", self.id):
            fail(f"SORTIE_TESTBED_ID={self.id!r}: must be 1 to 7 lower-case letters or digits"
                 " (it becomes part of interface names)")
        self.dir = Path(os.environ.get("SORTIE_TESTBED_DIR", "/tmp/sortie-testbed")) / self.id
        self.bridge = f"st-{self.id}-br"
        self.shared = self.dir / "shared"
        self.ssh_config = self.dir / "ssh_config"
        self.known_hosts = self.dir / "known_hosts"
        self.identity = self.dir / "id_ed25519"
        self.cgroup = Path("/sys/fs/cgroup/unified" if os.path.ismount("/sys/fs/cgroup/unified")
                           else "/sys/fs/cgroup") / f"st-{self.id}"

    # ---- hosts ----

    @staticmethod
    def host_name(number):
        return f"h{number:02d}"

    def netns(self, number):
        return f"st-{self.id}-n{number:02d}"  # also the name of the bridge's end of the host's veth pair

    def host_dir(self, number):
        return self.dir / "hosts" / self.host_name(number)

    def settings(self):
        """Returns the settings that `up` wrote; fails with one line if the bed is not up."""
        try:
            return json.loads((self.dir / "bed.json").read_text())
        except (OSError, ValueError):
            fail(f"bed {self.id!r} is not up; run: scripts/testbed up N")

    def count(self):
        return self.settings()["count"]

    def address(self, number):
        return f"{self.settings()['subnet']}.{number}"

    def number(self, host):
        """h03, 3 or 03 -> 3."""
        match = re.fullmatch(r"h?0*([1-9][0-9]?)", host)
        count = self.count()
        if not match or int(match.group(1)) > count:
            fail(f"{host!r} is not a host of bed {self.id!r} (h01 .. {self.host_name(count)})")
        return int(match.group(1))

    def cgroups(self):
        """Returns the bed's cgroup, and those that container engines have made for its hosts, with cgroup v1 one under every controller."""
        root, engines = Path("/sys/fs/cgroup"), f"{self.cgroup.name}-h*"
        return [self.cgroup, *root.glob(engines), *root.glob(f"*/{engines}")]

    # ---- processes ----

    def init_pid(self, number):
        """Returns the pid on the bastion of the host's pid 1 (its sshd); fails if that has exited."""
        try:
            pid = int((self.host_dir(number) / "init.pid").read_text())
            if os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat(f"/run/netns/{self.netns(number)}").st_ino:
                return pid
        except (OSError, ValueError):
            pass
        fail(f"{self.host_name(number)}: its first process is gone; run: scripts/testbed up N")

    def pids_by_netns(self):
        """Returns {netns name: [pids]} of all namespaces of this bed, also of those without a state file."""
        inodes = {}
        for path in Path("/run/netns").glob(f"st-{self.id}-n[0-9][0-9]"):
            try:
                inodes[path.stat().st_ino] = path.name
            except OSError:
                continue
        found = {name: [] for name in inodes.values()}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    name = inodes.get(os.stat(f"/proc/{entry}/ns/net").st_ino)
                except OSError:
                    continue
                if name:
                    found[name].append(int(entry))
        return found


class Lock:
    """Allows one `up` or `down` of any bed at a time: beds share the subnets and the test user."""

    def __enter__(self):
        self.file = open("/run/lock/sortie-testbed.lock" if os.path.isdir("/run/lock")
                         else "/tmp/sortie-testbed.lock", "w")
        deadline = time.monotonic() + 60
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError:
                if time.monotonic() > deadline:
                    fail("another `testbed up` or `down` has been running for 60 s; wait for it or end it")
                time.sleep(0.05)

    def __exit__(self, *_):
        self.file.close()


def check_machine():
    if os.geteuid() != 0:
        fail("namespaces and sshd need root; run it as root")
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("sshd", "openssh-server"),
                          ("ssh-keygen", "openssh-client"), ("nsenter", "util-linux"),
                          ("setpriv", "util-linux"), ("useradd", "passwd")):
        if not shutil.which(tool):
            fail(f"{tool} is missing; install the package {package} (or run: scripts/setup --test)")


def note(text):
    print(f"testbed: {text}", file=sys.stderr)
