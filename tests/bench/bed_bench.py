"""Code that the benchmarks over a testbed share: beds, timed commands, tables."""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SORTIE_BUILD", ROOT / "build/release"))
SORTIE = BUILD / "bin/sortie"
TESTBED = ROOT / "scripts/testbed"


class BedOf:
    """with BedOf(64) as environment: a bed with the id SORTIE_TESTBED_ID, if set, or `bed_id`. Removed at the end."""

    def __init__(self, count, bed_id="bench", *options):
        self.count, self.options = count, options
        self.environment = {**os.environ, "SORTIE_TESTBED_ID": os.environ.get("SORTIE_TESTBED_ID", bed_id)}

    def __enter__(self):
        subprocess.run([TESTBED, "up", str(self.count), *self.options], env=self.environment, check=True,
                       stdout=subprocess.DEVNULL)
        lines = subprocess.run([TESTBED, "env"], env=self.environment, check=True, text=True,
                               stdout=subprocess.PIPE).stdout
        for line in lines.splitlines():
            name, value = line.removeprefix("export ").split("=", 1)
            self.environment[name] = value.strip("'")
        return self.environment

    def __exit__(self, *_):
        subprocess.run([TESTBED, "down"], env=self.environment, check=True)


class Keeper:
    """The background process of commands with runner.ssh.persist, in a separate runtime folder. Ends with the block."""

    def __init__(self, environment):
        self.folder = tempfile.TemporaryDirectory(prefix="sortie-bench-")
        self.environment = {**environment, "XDG_RUNTIME_DIR": self.folder.name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.folder.cleanup()

    def close(self):
        subprocess.run([SORTIE, "connections", "close"], env=self.environment, check=True, stdout=subprocess.DEVNULL)
        while any(path.is_socket() for path in Path(self.folder.name).rglob("*")):
            time.sleep(0.05)

    def pid(self):
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and b"keep-connections" in (entry / "cmdline").read_bytes() and \
                        f"XDG_RUNTIME_DIR={self.folder.name}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
            except OSError:
                continue
        raise SystemExit("no background process keeps connections")

    def cpu(self):
        """Returns its CPU seconds so far, from schedstat, which has nanoseconds; /proc/PID/stat counts ticks of 10 ms."""
        return int(Path(f"/proc/{self.pid()}/schedstat").read_text().split()[0]) / 1e9

    def own_kib(self):
        """Returns its private memory in KiB."""
        status = Path(f"/proc/{self.pid()}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("RssAnon:")))

    def wait_idle(self, count):
        """Waits until all connections are idle and the hosts are ready for the next command (0.2 s)."""
        while True:
            text = subprocess.run([SORTIE, "connections", "ls", "--json"], env=self.environment, text=True,
                                  capture_output=True, check=True).stdout
            if '"state": "busy"' not in text and text.count('"idle"') >= count:
                return time.sleep(0.4)
            time.sleep(0.05)

    def timed(self, argv, count):
        """Runs a command over kept connections. Returns (wall seconds, CPU seconds of client and background process)."""
        self.wait_idle(count)
        before = self.cpu()
        wall, cpu = timed(argv, self.environment)
        return wall, cpu + self.cpu() - before


def cpu_by_part(argv, environment, rounds, part_of, prepare=None):
    """Returns the CPU seconds of all processes of the machine while a command runs, as a mean of `rounds` rounds, by
    `part_of(name, pid)` (None: not counted). `prepare` runs before each round and is not counted. Needs perf."""
    rate, sums = 5000, {}
    with tempfile.TemporaryDirectory(prefix="sortie-bench-") as folder:
        data = Path(folder, "perf.data")
        for _ in range(rounds):
            if prepare:
                prepare()
            subprocess.run(["perf", "record", "-q", "-o", data, "-e", "cpu-clock", "-F", str(rate), "-a", "--", *map(str, argv)],
                           env=environment, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            lines = subprocess.run(["perf", "script", "-i", data, "-F", "comm,pid"], check=True, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL).stdout.splitlines()
            for line in lines:
                name, _, pid = line.strip().rpartition(" ")
                if part := part_of(name.strip(), int(pid)):
                    sums[part] = sums.get(part, 0) + 1 / rate / rounds
    return sums


def host_part(name):
    """Returns the part that a process on a host has in a command that runs `true` there, or None."""
    for start, part in {"sshd": "sshd", "bash": "shell", "sh": "shell", "dash": "shell", "true": "true itself"}.items():
        if name == start:
            return part
    return "runner" if name.startswith(("sortie-runner", "sortie-keep", "runner")) else None


def shape(device, rate, netns=None):
    """Limits the rate at which a device sends (tc syntax: 1gbit); "off" removes the limit."""
    enter = ["ip", "netns", "exec", netns] if netns else []
    if rate == "off":
        subprocess.run([*enter, "tc", "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL)
        return
    subprocess.run([*enter, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb",
                    "latency", "50ms"], check=True)


def shape_links(bed, hosts, rate):
    """Limits the bastion's own link, and each host's in both directions."""
    for number in range(1, hosts + 1):
        shape(bed.netns(number), rate)
        shape("eth0", rate, bed.netns(number))
    shape(bed.bridge, rate)


def on_all(environment, hosts, command):
    """Returns the output of a shell command on each host."""
    return [subprocess.run([TESTBED, "exec", host, "sh", "-c", command], env=environment, check=True, text=True,
                           stdout=subprocess.PIPE).stdout for host in hosts]


def with_names(environment, argv):
    """Returns the command with the bed's names in its /etc/hosts, as on a cluster's bastion, and no name server: mpirun
    looks up every host's name, and waits for seconds if no server answers."""
    folder = Path(environment["SORTIE_TESTBED_SSH_CONFIG"]).parent
    mounts = f"mount --bind {folder}/hosts.txt /etc/hosts && mount --bind {folder}/resolv.conf /etc/resolv.conf"
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *argv]


def timed(argv, environment, expect=None, timeout=120):
    """Runs a command. Returns (wall seconds, CPU seconds of the client and all its children). Exits if the command fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run([str(word) for word in argv], env=environment, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, capture_output=True)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or (expect and not expect(done.stdout)):
        sys.exit(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n"
                 f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shared_folder(environment):
    """Creates a folder that all hosts of the bed see."""
    shared = Path(tempfile.mkdtemp(dir=f"/tmp/sortie-testbed/{environment['SORTIE_TESTBED_ID']}/shared"))
    shared.chmod(0o755)
    return shared


def whole_lines(path):
    """Returns the objects of a file with one JSON object per line. Ignores an incomplete last line."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def tokens(folder):
    """Builds token files from the project's own sources. Returns their prefix."""
    prefix = Path(folder, "tokens")
    subprocess.run([BUILD / "bin/sortie-train", "data", "build", "--tokenizer", "byte", "--output", prefix, "--include",
                    "*.h", ROOT / "common"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path in Path(folder).glob("tokens.*"):
        path.chmod(0o644)
    return prefix


def interleaved(rows, rounds):
    """Returns {name: [(wall, cpu)]}. Each round runs every row once, so that a busy moment affects all of them alike."""
    results = {name: [] for name in rows}
    for number in range(rounds):
        for name, run in rows.items():
            results[name].append(run())
            print(f"\r  round {number + 1} of {rounds}: {name:24}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return results


def best(samples):
    return min(wall for wall, _ in samples), min(cpu for _, cpu in samples)


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                 platform.machine())
    return f"{os.cpu_count()} x {model}, Linux {platform.release().split('-')[0]}, load {os.getloadavg()[0]:.1f}"


def require(path, what):
    """Exits if the measured program, or sortie-runner, which sortie needs, has not been built."""
    missing = [name for name in (path, path.with_name("sortie-runner")) if not name.exists()]
    if missing:
        sys.exit(f"{missing[0]} is missing; build it first: cmake --preset release && cmake --build --preset release"
                 f" --target {what} sortie-runner")
