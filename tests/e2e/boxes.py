"""What the container scenarios stand on: a bed whose hosts have a dockerd each, its image, the table that puts a run
into containers, and the question what is left in an engine."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from harness import BED_ID, BUILD, HOSTS, ROOT, HostBed, Run, check, executable_of, run_to_end, testbed

import engine  # of scripts/testbed.d, as harness has put it into the path

IMAGE = "sortie-test:cpu"
ARCHIVE = BUILD / "images/sortie-test.tar"
SMALL_BEDS = {"podman": "p", "containerd": "d"}  # how their ids begin
# Ranks that wait make way by sched_yield; where each container is a control group of its own and four hosts share two
# cores, that has been seen to stop everything for seconds.
AWAKE = {"runner.env.OMPI_MCA_mpi_yield_when_idle": "0"}
RUNNING, ALL = ("ps", "--quiet"), ("ps", "--all", "--quiet")


def build_image():
    """Of the programs of this build; nothing is done where nothing has changed."""
    done = run_to_end(ROOT / "scripts/build-image", "--test", "--no-build", "--output", ARCHIVE, seconds=120,
                  env={**os.environ, "SORTIE_BUILD": str(BUILD)})
    check(done.returncode == 0, f"scripts/build-image: {done.stderr}")
    return json.loads(ARCHIVE.with_suffix(".json").read_text())["id"]


class ContainerBed(HostBed):
    def docker(self, host, *arguments, okay=True):
        """stdout of Debian's docker, which talks to the engine of a host."""
        done = run_to_end(*engine.docker_argv(self.bed, host, *arguments))
        check(not okay or done.returncode == 0, f"{host}: docker {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def docker_host(self, host):
        return f"unix://{engine.socket_path(self.bed, host)}"

    def containers(self, host, *how):
        return self.docker(host, *(how or ALL)).split()

    def leftovers(self, hosts=None):
        """Processes, and containers whatever their state: only what ran to its end and is removed leaves nothing."""
        hosts = hosts or HOSTS
        found = super().leftovers(hosts)
        for host in hosts:
            if engine.listens(self.bed, host, engine.DOCKER_SOCKET):
                names = self.docker(host, "ps", "--all", "--format", "{{.Names}} {{.Status}}").splitlines()
                found += [f"{host}: container {name}" for name in names]
        return found

    def load(self, host):
        self.docker(host, "load", "--quiet", "--input", ARCHIVE)

    def load_all(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(self.load, HOSTS))

    def repair(self, host):
        """An engine that runs, is open to the test user, has the image and no container."""
        if not engine.pids(self.bed, host, engine.DOCKERD):
            engine.command(self.bed, host, "start", False)
        os.chmod(engine.socket_path(self.bed, host), 0o660)
        if left := self.containers(host):
            self.docker(host, "rm", "--force", *left, okay=False)
        if not self.docker(host, "images", "--quiet", IMAGE).strip():
            self.load(host)

    def clear(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(self.repair, HOSTS))
        super().clear()

    def inits(self, host):
        """Pids of the first processes of Sortie's containers."""
        return [pid for pid, inside, *_ in self.processes(host) if inside == 1 and executable_of(pid) == "runner"]


def quoted(value):
    """As TOML, which JSON is for all that is used here."""
    return json.dumps(value) if isinstance(value, (list, str)) else value


def table(**more):
    """`--set` for [runner.container]; what a small machine can not grant is not asked for."""
    keys = {"engine": "docker", "image": IMAGE, "ulimits": "{}", **more}
    return {f"runner.container.{key}": value if key == "ulimits" else quoted(value) for key, value in keys.items()}


@contextlib.contextmanager
def boxed(bed, *program, box=None, settings=(), **arguments):
    """A run in containers."""
    with Run(bed, *program, settings={**table(**(box or {})), **AWAKE, **dict(settings)}, **arguments) as run:
        yield run


def config_with_table(bed, config, **more):
    """A copy of a config file that runs bare, with the table added: nothing else differs."""
    lines = ["", "[runner.container]"]
    keys = {"engine": "docker", "image": IMAGE, "ulimits": {}, **more}
    for key, value in keys.items():
        lines.append(f"{key} = {'{}' if value == {} else json.dumps(value)}")
    path = bed.shared / f"containers-{Path(config).name}"
    path.write_text(Path(config).read_text() + "\n".join(lines) + "\n")
    return path


class SmallBed:
    """A bed of its own with another engine, for as long as a scenario takes."""

    def __init__(self, kind, count):
        self.kind, self.count, self.id = kind, count, SMALL_BEDS[kind] + BED_ID[1:]

    def command(self, *arguments):
        done = run_to_end(ROOT / "scripts/testbed", *arguments, seconds=120,
                      env={**os.environ, "SORTIE_TESTBED_ID": self.id})
        check(done.returncode == 0, f"testbed {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def __enter__(self):
        self.command("up", self.count, f"--{self.kind}")
        self.bed = testbed.Bed(self.id)
        self.ssh_config, self.shared = self.bed.ssh_config, self.bed.shared
        return self

    def __exit__(self, *_):
        self.command("down")

    def archive(self):
        """The image where the hosts can read it."""
        path = self.shared / ARCHIVE.name
        shutil.copyfile(ARCHIVE, path)
        path.chmod(0o644)
        return path


@contextlib.contextmanager
def folder(prefix="sortie-e2e-"):
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
