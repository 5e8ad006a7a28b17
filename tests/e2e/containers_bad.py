"""Faults of container jobs: each gives one clear error with the right exit code, and nothing starts on any host.

One table. A row says what is broken, on which host, and what the message must contain. To add a case, extend `ROWS`."""

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from boxes import IMAGE, ContainerBed, boxed, table
from check import Checked
from harness import HOSTS, Failure, check, equal

import engine

__all__ = ["ContainerBed"]
TINY = Path(__file__).resolve().parent / "tiny.toml"
WRITES = ("sh", "-c", "touch /shared/started-$RANK; sleep 5")


@dataclass
class Row:
    name: str
    box: dict
    says: list  # patterns; the output must contain all
    codes: tuple
    program: tuple = WRITES
    broken: object = None  # context manager that makes the fault and removes it
    settings: dict = field(default_factory=dict)
    inside: bool = False  # found inside: a container starts, but its ranks do not
    hosts: str = "h[01-04]"


@contextlib.contextmanager
def image_gone(bed):
    bed.docker("h03", "rmi", "--force", IMAGE)
    try:
        yield
    finally:
        bed.load("h03")


@contextlib.contextmanager
def other_image(bed):
    other = bed.docker("h03", "create", "--network", "none", IMAGE, "true").strip()
    bed.docker("h03", "commit", other, IMAGE)
    bed.docker("h03", "rm", other)
    try:
        yield
    finally:
        bed.load("h03")


@contextlib.contextmanager
def engine_stopped(bed):
    engine.end_dockerd(bed.bed, "h02")
    try:
        yield
    finally:
        engine.command(bed.bed, "h02", "start", False)


@contextlib.contextmanager
def no_permission(bed):
    path = Path(engine.socket_path(bed.bed, "h02"))
    mode = path.stat().st_mode
    path.chmod(0o600)
    try:
        yield
    finally:
        path.chmod(mode)


@contextlib.contextmanager
def mounted_except_h04(bed):
    for host in HOSTS[:3]:
        bed.run_in(host, "mkdir", "-p", "/tmp/only-some")
    try:
        yield
    finally:
        for host in HOSTS[:3]:
            bed.run_in(host, "rmdir", "/tmp/only-some")


ROWS = [
    Row("unknown engine", {"engine": "dokcer"}, [r"runner\.container\.engine", "dokcer", r'"docker"'], (2,)),
    Row("four strings as one mount", {"mounts": ["/a", "/b", "/c", "/d"]},
        [r"runner\.container\.mounts", r'\[\["/a", "/b"\], \["/c", "/d"\]\]'], (2,)),
    Row("relative mount path", {"mounts": [["data", "/data"]]}, [r"runner\.container\.mounts", "relative"], (2,)),
    Row("shm_size that is no size", {"shm_size": "16 gibi"}, [r"runner\.container\.shm_size", "16 gibi"], (2,)),
    Row("data under no mount", {}, [r"data\.data_prefixes", "/nowhere", r'\["/nowhere", "/nowhere", "ro"\]'], (2,), (),
        settings={"data.data_prefixes": '["/nowhere/tokens"]'}),
    Row("save_dir in a mount that is read-only", {"mounts": [["/tmp", "/data", "ro"]]}, [r"trainer\.save_dir", "read-only"], (2,), (),
        settings={"data.data_prefixes": '["/data/tokens"]', "trainer.save_dir": "/data/out"}),
    Row("MPI without the host's network", {"network": "none"}, [r"runner\.container\.network", r"runner\.mpi"], (2,),
        settings={"runner.mpi": "on"}),
    Row("ranks on hosts without a network", {"network": "none"}, [r"runner\.container\.network", "4 hosts", '"host"'], (2,),
        ("e2e_mpi_ring",), settings={"runner.mpi": "auto"}),
    Row("MPI on one host without the host's network", {"network": "none"},
        ["e2e_mpi_ring.* is an MPI program, and .* need network = .host."], (3,), ("e2e_mpi_ring",),
        settings={"runner.mpi": "auto"}, inside=True, hosts="h01"),
    Row("MPI on several hosts with a bridge", {"network": "bridge"},
        ["e2e_mpi_ring.* is an MPI program, and .* need network = .host."], (3,), ("e2e_mpi_ring",),
        settings={"runner.mpi": "auto"}, inside=True),
    Row("a variable as an engine's argument", {"extra_args": ["--env", "A=b"]}, [r"extra_args", "process list"], (2,)),
    Row("image missing on h03, pull never", {"pull": "never"}, ["h03: ", IMAGE, "never"], (3, 4, 9), broken=image_gone),
    Row("image missing on h03, no registry answers", {"image": "127.0.0.1:9/none:1"}, [r"h\[01-04\]: ", "127.0.0.1:9/none:1", "refused"],
        (3, 4, 9)),
    Row("another image of that name on h03", {}, ["h03", IMAGE, r"h\[01-02,04\]", "sha256:"], (3, 4), broken=other_image),
    Row("engine not running on h02", {}, ["h02: .*docker.* does not run"], (3, 4), broken=engine_stopped),
    Row("no permission on the socket of h02", {}, ["h02: .*may not use the engine"], (3, 4, 9), broken=no_permission),
    Row("mount source missing on h04", {"mounts": [["/tmp/only-some", "/shared"]]}, ["h04: .*not on this host: /tmp/only-some"],
        (3,), broken=mounted_except_h04),
    Row("GPUs where there are none", {"gpus": "all"}, [r"h\[01-04\]: ", "(?i)gpu"], (3, 4)),
    Row("program missing in the image", {}, ["/no/such/program", IMAGE + "|image|container"], (3,), ("/no/such/program",), inside=True),
    Row("entrypoint missing in the image", {"entrypoint": ["/no/such/entrypoint"]}, ["/no/such/entrypoint"], (3,), inside=True),
    Row("program not executable", {}, ["/usr/local/bin/not-executable", "(?i)permission"], (3,), ("/usr/local/bin/not-executable",), inside=True),
    Row("MPI as another user than the runner's", {"user": "12345:12345"},
        ["e2e_mpi_ring.* is an MPI program, and .* same user as the runner", r"runner\.mpi"], (3,), ("e2e_mpi_ring",),
        settings={"runner.mpi": "auto"}, inside=True),
    Row("the same in a run with restarts", {"user": "12345:12345"},
        ["same user as the runner", "no rank had run: a restart would fail in the same way"], (3,), ("e2e_mpi_ring",),
        settings={"runner.mpi": "auto", "recovery.max_restarts": 2}, inside=True),
    Row("the engine refuses an argument", {"extra_args": ["--cpuset-cpus=4000"]}, [r"h\[01-04\]: .*exit code 125", "(?i)cpu"], (3, 4)),
    Row("a limit above what the host grants", {"ulimits": '{nofile="1073741817"}'}, [r"h\[01-04\]: .*exit code 125", "rlimit|ulimit|nofile"], (3, 4)),
]


def events_of(bed, host, since):
    """Returns the names of the containers that the engine of a host has started since `since`."""
    lines = bed.docker(host, "events", "--since", since, "--until", f"{time.time():.9f}", "--filter", "type=container",
                       "--filter", "event=start", "--format", "{{json .}}").splitlines()
    return [json.loads(line)["Actor"]["Attributes"].get("name") for line in lines]


def one_error(row, text):
    """A fault in the config gives one line; a fault on hosts is reported once, not once per host."""
    lines = [line for line in text.splitlines() if line.strip()]
    if row.codes == (2,):
        return len(lines) == 1
    return len([line for line in lines if re.match(r"h(\d\d|\[)\S*: \w+: ", line)]) <= 1


def play(bed, row):
    for path in bed.shared.glob("started-*"):
        path.unlink()
    since = f"{time.time():.9f}"
    box = {"mounts": [[str(bed.shared), "/shared"]], **row.box}
    with row.broken(bed) if row.broken else contextlib.nullcontext():
        with boxed(bed, *row.program, box=box, settings={"runner.mpi": "off", **row.settings}, hosts=row.hosts,
                   config=None if row.program else TINY) as run:
            code = run.wait(30)
            text = run.text()
            try:
                check(code in row.codes, f"exit code {code}, not one of {row.codes}")
                for pattern in row.says:
                    check(re.search(pattern, text), f"no {pattern!r} in the output")
                check(one_error(row, text), "more than one error")
                equal([path.name for path in bed.shared.glob("started-*")], [], "ranks that ran")
                if not row.inside:
                    hosts = [host for host in HOSTS if engine.listens(bed.bed, host, engine.DOCKER_SOCKET)]
                    equal({host: names for host in hosts if (names := events_of(bed, host, since))}, {}, "containers that started")
                bed.expect_nothing_left(5)
            except Failure as error:
                raise Failure(f"{row.name}: {error}\n{text[-3000:]}") from None
            print(f"{row.name}: exit code {code} after {run.elapsed():.1f} s", flush=True)
            if os.environ.get("SORTIE_E2E_SHOW"):
                print(text)


def scenario_one_clear_error_each(bed):
    wanted = os.environ.get("SORTIE_E2E_ROWS", "")
    failures = []
    for row in ROWS:
        if wanted and not re.search(wanted, row.name):
            continue
        try:
            play(bed, row)
        except Exception as error:  # report every row that fails, not only the first
            failures.append(f"{row.name}: {error}")
            bed.clear()
    check(not failures, "\n".join(failures))


def scenario_check_names_it(bed):
    """`sortie check` finds before a run what would prevent it, each fault on its host."""
    options = [word for key, value in table(mounts=[["/tmp/only-some", "/data"]], pull="never").items()
               for word in ("--set", f"{key}={value}")]
    with mounted_except_h04(bed), image_gone(bed), no_permission(bed):
        engine.end_dockerd(bed.bed, "h01")
        found = Checked(bed, *options, "--set", 'runner.program=["true"]')
    engine.command(bed.bed, "h01", "start", False)
    equal(found.code, 2, "exit code")
    found.expect("h01", "engine", "fail", "does not run")
    found.expect("h02", "engine", "fail", "may not use the engine")
    found.expect("h03", "engine", "pass", "docker 20")
    found.expect("h03", "image", "fail", 'pull = "never"')
    found.expect("h04", "image", "pass", "sha256:")
    found.expect("h04", "mounts", "fail", "/tmp/only-some")
    found.expect("h04", "image_disk", "pass", "free in")
    found.expect("h04", "gpu_runtime", "pass", "no GPUs here")
    found.expect("h04", "shm", "pass" if found.finding("h04", "shm")["verdict"] == "pass" else "warn", "in a container")
    container = {"engine", "image", "mounts", "image_disk", "gpu_runtime"}
    equal({(host, name) for host, name in found.failed() if name in container},
          {("h01", "engine"), ("h02", "engine"), ("h03", "image"), ("h04", "mounts")}, "what fails")
