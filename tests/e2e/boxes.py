"""Code that the container scenarios share: a bed with a dockerd on every host, its image, the table that puts a run
into containers, and the search for leftovers in an engine."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from harness import BED_ID, BUILD, HOSTS, ROOT, HostBed, Run, check, executable_of, run_to_end, testbed

import engine  # in scripts/testbed.d, which harness adds to the path

IMAGE = "sortie-test:cpu"
ARCHIVE = BUILD / "images/sortie-test.tar"
SMALL_BEDS = {"podman": "p", "containerd": "d"}  # first character of their bed ids
# Waiting ranks must not call sched_yield: with a control group per container and four hosts on two cores, that has been
# seen to block everything for seconds.
AWAKE = {"runner.env.OMPI_MCA_mpi_yield_when_idle": "0"}
RUNNING, ALL = ("ps", "--quiet"), ("ps", "--all", "--quiet")


def build_image():
    """Builds the image from the programs of this build, unless it is up to date. Returns its id."""
    done = run_to_end(ROOT / "scripts/build-image", "--test", "--no-build", "--output", ARCHIVE, seconds=120,
                  env={**os.environ, "SORTIE_BUILD": str(BUILD)})
    check(done.returncode == 0, f"scripts/build-image: {done.stderr}")
    return json.loads(ARCHIVE.with_suffix(".json").read_text())["id"]


class ContainerBed(HostBed):
    def docker(self, host, *arguments, okay=True):
        """Runs Debian's docker with the engine of a host. Returns its stdout."""
        done = run_to_end(*engine.docker_argv(self.bed, host, *arguments))
        check(not okay or done.returncode == 0, f"{host}: docker {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def docker_host(self, host):
        return f"unix://{engine.socket_path(self.bed, host)}"

    def containers(self, host, *how):
        return self.docker(host, *(how or ALL)).split()

    def leftovers(self, hosts=None):
        """Processes, and containers in any state: a container that has exited but was not removed counts, too."""
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
        """Makes sure that the engine runs, is open to the test user, has the image, and has no container."""
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
        """Returns the pids of the first processes of Sortie's containers."""
        return [pid for pid, inside, *_ in self.processes(host) if inside == 1 and executable_of(pid) == "runner"]


def quoted(value):
    """Returns the value as TOML. JSON is valid TOML for all values used here."""
    return json.dumps(value) if isinstance(value, (list, str)) else value


def table(**more):
    """Returns the `--set` values for [runner.container]. ulimits is empty, because a small machine can not grant the default."""
    keys = {"engine": "docker", "image": IMAGE, "ulimits": "{}", **more}
    return {f"runner.container.{key}": value if key == "ulimits" else quoted(value) for key, value in keys.items()}


@contextlib.contextmanager
def boxed(bed, *program, box=None, settings=(), **arguments):
    """Starts a run in containers."""
    with Run(bed, *program, settings={**table(**(box or {})), **AWAKE, **dict(settings)}, **arguments) as run:
        yield run


def config_with_table(bed, config, **more):
    """Copies a config file of a run without containers and adds the table; nothing else differs. Returns the path."""
    lines = ["", "[runner.container]"]
    keys = {"engine": "docker", "image": IMAGE, "ulimits": {}, **more}
    for key, value in keys.items():
        lines.append(f"{key} = {'{}' if value == {} else json.dumps(value)}")
    path = bed.shared / f"containers-{Path(config).name}"
    path.write_text(Path(config).read_text() + "\n".join(lines) + "\n")
    return path


class SmallBed:
    """A separate bed with another engine, which exists for one scenario."""

    def __init__(self, kind, count):
        self.kind, self.count, self.id = kind, count, SMALL_BEDS[kind] + BED_ID[1:]
        self.environment = {**os.environ, "SORTIE_TESTBED_ID": self.id}

    def command(self, *arguments):
        done = run_to_end(ROOT / "scripts/testbed", *arguments, seconds=120, env=self.environment)
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
        """Copies the image to where the hosts can read it. Returns the path."""
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
