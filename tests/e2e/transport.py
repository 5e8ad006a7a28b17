"""Hosts that are containers: each host's dockerd runs one container without sshd, and Sortie reaches it by `docker exec -i`
(runner.transport). Every verb works over it, and nothing is left in a container after a run."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from boxes import AWAKE, IMAGE, ContainerBed, engine
from check import is_sound
from harness import HOSTS, SORTIE, Gates, Run, check, equal, run_to_end, wait_until
from restart import RESTART, attempts, ranks_of

__all__ = ["ContainerBed"]  # run.py uses it
QUICK = {"runner.grace": "1s"}  # default heartbeats, because they pass through the engines, which are slow on a busy machine


class Boxes:
    """A container named "box" in each host's engine, on the host's network, at `docker --host unix://FOLDER/HOST.sock`."""

    def __init__(self, bed):
        self.bed = bed
        self.folder = Path(tempfile.mkdtemp(prefix="sortie-box-"))
        self.words = [engine.DOCKER, "--host", f"unix://{self.folder}/{{host}}.sock", "exec", "-i", "box"]

    def __enter__(self):
        owner = self.bed.shared.stat()
        for host in HOSTS:
            (self.folder / f"{host}.sock").symlink_to(engine.socket_path(self.bed.bed, host))
            self.bed.docker(host, "run", "--detach", "--name", "box", "--network", "host", "--log-driver", "none", "--init",
                            "--user", f"{owner.st_uid}:{owner.st_gid}", "--volume", f"{self.bed.shared}:{self.bed.shared}",
                            "--shm-size", "64m", IMAGE, "sleep", "100000")
        return self

    def __exit__(self, *_error):
        for host in HOSTS:
            self.bed.docker(host, "rm", "--force", "box", okay=False)
        for link in self.folder.iterdir():
            link.unlink()
        self.folder.rmdir()

    def settings(self, **more):
        return {"runner.transport": json.dumps(self.words), **QUICK, **AWAKE, **more}

    def sortie(self, verb, *arguments, seconds=60, hosts="h[01-04]"):
        options = ["--hosts", hosts]
        for key, value in self.settings().items():
            options += ["--set", f"{key}={value}"]
        return run_to_end(SORTIE, verb, *options, *arguments, seconds=seconds)

    def processes(self):
        """Returns the processes in the boxes except their `sleep` and docker's init."""
        return [f"{host}: {pid} {command}" for host in HOSTS for pid, _, _, _, command in self.bed.processes(host)
                if "sleep 100000" not in command and "containerd-shim" not in command]

    def expect_clean(self, seconds):
        wait_until(lambda: not self.processes(), seconds, lambda: f"the end of all in the boxes ({self.processes()})")


@contextlib.contextmanager
def running(boxes, *program, settings=(), hosts="h[01-04]", slots=2):
    with Run(boxes.bed, *program, hosts=hosts, slots=slots, settings=boxes.settings(**dict(settings))) as run:
        yield run


def scenario_mpi_and_the_verbs_over_docker_exec(bed):
    with Boxes(bed) as boxes:
        done = boxes.sortie("exec", "--", "sh", "-c", "hostname; exit 0")
        equal(done.returncode, 0, f"exit code of exec ({done.stderr})")
        check(all(f"{host}" in done.stdout for host in HOSTS), done.stdout)
        # A longer timeout, because ranks that poll take processor time from the engines.
        with running(boxes, "e2e_mpi_ring", settings={"runner.heartbeat_timeout": "30s"}) as run:
            equal(run.wait(60), 0, f"exit code of MPI ({run.text()[-2000:]})")
            run.expect(r"ring ok size=8 sum=28")
        with running(boxes, "sh", "-c", 'echo "$RANK at $MASTER_ADDR"', slots=1) as run:
            equal(run.wait(60), 0, "exit code of a program")
            equal({run.log(rank).decode().split(" at ")[1].strip() for rank in range(4)}, {bed.address("h01")}, "MASTER_ADDR")
        with tempfile.TemporaryDirectory() as own:
            sent = Path(own, "sent")
            sent.write_bytes(os.urandom(3 << 20))
            done = boxes.sortie("push", sent, "/tmp/sent")
            equal(done.returncode, 0, f"exit code of push ({done.stderr})")
            done = boxes.sortie("pull", "/tmp/sent", Path(own, "back"))
            equal(done.returncode, 0, f"exit code of pull ({done.stderr})")
            back = [path for path in Path(own, "back").rglob("*") if path.is_file()]
            equal(len(back), 4, f"files that came back ({back})")
            check(all(path.read_bytes() == sent.read_bytes() for path in back), "a file is not what was sent")
        done = boxes.sortie("check", "--json")
        hosts = {host["host"]: host for host in json.loads(done.stdout)["hosts"]}
        equal(sorted(hosts), HOSTS, f"hosts of check ({done.stderr})")
        networks = [one for host in hosts.values() for one in host["checks"] if one["check"] == "network"]
        equal([is_sound(one) for one in networks], [True] * len(HOSTS), f"network checks ({networks})")
        boxes.expect_clean(15)
    bed.expect_nothing_left(15)


def scenario_endings_over_docker_exec(bed):
    """A rank's exit code, Ctrl-C, a killed launcher, and a killed rank that is restarted: nothing is left in a container."""
    with Boxes(bed) as boxes, Gates(bed) as gates:
        with running(boxes, "sh", "-c", "test $RANK = 3 && exit 9; exec sleep 1000") as run:
            equal(run.wait(60), 9, f"exit code ({run.text()[-2000:]})")
            run.expect(r"rank 3 on h02")
            boxes.expect_clean(15)
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, 137)):
            with running(boxes, "sh", "-c", "setsid sleep 1000 & exec sleep 1000") as run:
                run.wait_for_ranks(8, 40)
                run.signal(number)
                equal(run.wait(40), code, "exit code")
                boxes.expect_clean(40)
        with running(boxes, "sh", "-c", f'test "$SORTIE_ATTEMPT" = 1 && exec sleep 1000; {gates.wait("end")}', slots=1,
                     settings={**RESTART, "runner.heartbeat_interval": "2s", "runner.heartbeat_timeout": "10s"}) as run:
            os.kill(ranks_of(run, 1, 4)[2][1], signal.SIGKILL)
            ranks_of(run, 2, 4)
            gates.open("end")
            equal(run.wait(60), 0, f"exit code after a restart ({run.text()[-2000:]})")
            equal(attempts(run), [1, 2], "attempts")
        # The transport fails: the client of one host dies.
        with running(boxes, "sleep", "1000", slots=1) as run:
            run.wait_for_ranks(4, 40)
            clients = subprocess.run(["pgrep", "-f", f"unix://{boxes.folder}/h02.sock"], text=True, capture_output=True).stdout
            check(clients.split(), "no client of h02")
            for pid in clients.split():
                os.kill(int(pid), signal.SIGKILL)
            equal(run.wait(60), 5, f"exit code when the way is lost ({run.text()[-2000:]})")
            run.expect(r"h02: .*lost")
            boxes.expect_clean(40)
    bed.expect_nothing_left(15)


BAD = [
    ("[\"docker\", \"exec\", \"-i\", \"box\"]", 2, r"runner\.transport: no argument of it has \{host\}"),
    ("[\"\", \"{host}\"]", 2, r"runner\.transport: the program's name is empty"),
    ("[\"no-such-program\", \"{host}\"]", 2, r"runner\.transport: start no-such-program: No such file"),
    ("[\"sh\", \"-c\", \"echo no such pod >&2; exit 1\", \"{host}\"]", 4, r"h\[01-04\]: connect: .*it said: no such pod"),
    ("[\"sleep\", \"{host}\"]", 4, r"h\[01-04\]: connect: .*sleep ended"),
]


def scenario_templates_that_are_wrong(bed):
    """Each gives one clear error for all hosts together."""
    for words, code, pattern in BAD:
        with Run(bed, "true", slots=1, settings={"runner.transport": words}) as run:
            equal(run.wait(40), code, f"exit code with {words} ({run.text()})")
            run.expect(pattern)
            equal(sum("runner.transport" in line for line in run.text().splitlines()), 1, f"lines that name it ({run.text()})")
    with Boxes(bed) as boxes:
        bed.docker("h03", "rm", "--force", "box")
        with running(boxes, "true", slots=1) as run:
            equal(run.wait(40), 4, f"exit code without a container ({run.text()})")
            run.expect(r"h03: connect: .*No such container: box")
        boxes.expect_clean(15)
