"""What survives `attach --adopt`: MPI with its published names, ranks with secrets, ranks with staged files. Also: an
adopter ends what remains on a host that it loses."""

import hashlib
import os
import signal
import tempfile
import time
from pathlib import Path

from detach import Detached, ended
from harness import BUILD, Gates, check, equal, parent_of, testbed, wait_until
from launch import files_holding

HOLD = {"runner.on_launcher_loss": "hold 60s"}


def lose_supervisor(run):
    os.kill(run.supervisor(), signal.SIGKILL)
    wait_until(lambda: not run.supervisors(), 5, "the end of the supervisor")


def adopt(run):
    """Starts `attach --adopt`. Returns its process once it is the supervisor, or has exited."""
    before = (run.path / "events.jsonl").read_text().count('"adopted"')
    adopter = run.start("attach", "--adopt", run.id)
    wait_until(lambda: (run.path / "events.jsonl").read_text().count('"adopted"') > before
               or adopter.poll() is not None, 20, "an adoption")
    return adopter


def all_say(run, text, ranks):
    wait_until(lambda: all(text in run.log(rank) for rank in ranks), 20, f"{text!r} of ranks {list(ranks)}")


def scenario_mpi_goes_on(bed):
    """Names published before the adoption are found after it. Lookups made while there is no supervisor are answered. Ranks
    that had not communicated before find each other. All end well. Twice: the second supervisor was itself an adopter."""
    folder = Path(tempfile.mkdtemp(dir=bed.shared))
    folder.chmod(0o755)
    with Detached(bed, BUILD / "bin/e2e_mpi_adopt", folder, settings=HOLD, slots=2) as run:
        all_say(run, "published", range(8))
        lose_supervisor(run)
        (folder / "lost").touch()
        time.sleep(0.5)  # the ranks send lookups, which their hosts keep
        adopter = adopt(run)
        all_say(run, "was answered", range(8))
        lose_supervisor(run)
        ended(adopter, 15, 5)
        (folder / "adopted").touch()
        time.sleep(0.5)
        ended(run.start("attach", "--adopt", run.id), 30, 0)
        check("adopt ok size=8" in run.log(0), "rank 0 does not say that all is well")
        bed.expect_nothing_left(5)


def scenario_secrets_stay_with_the_ranks(bed):
    """The adopter does not know the secret and needs none: the file that had it is removed. Nothing has it afterwards."""
    secret = "s3cr3t-" + os.urandom(12).hex()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    folder = Path(tempfile.mkdtemp(dir=bed.shared))
    folder.chmod(0o755)
    script = (f'while ! [ -e {folder}/adopted ]; do sleep 0.05; done; '
              'for v in "$IN_FILE" "$HF_TOKEN"; do printf %s "$v" | sha256sum; done; '
              f"while ! [ -e {folder}/seen ]; do sleep 0.05; done")
    with tempfile.TemporaryDirectory() as own:
        secrets, config = Path(own, "secrets"), Path(own, "job.toml")
        secrets.write_text(f"IN_FILE={secret}\n")
        secrets.chmod(0o600)
        config.write_text(f'[runner]\nsecrets_file = "{secrets}"\nenv = {{ HF_TOKEN = "{secret}" }}\n')
        with Detached(bed, "sh", "-c", script, settings=HOLD, config=config) as run:
            secrets.unlink()
            config.unlink()
            lose_supervisor(run)
            adopter = adopt(run)
            (folder / "adopted").touch()
            all_say(run, digest, range(4))
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    check(secret.encode() not in path.read_bytes(), f"{path} shows it")
                except OSError:  # gone
                    pass
            boss = Path(f"/proc/{run.supervisor()}/environ").read_bytes()
            check(secret.encode() not in boss, "it is in the environment of the adopter")
            (folder / "seen").touch()
            ended(adopter, 20, 0)
            for rank in range(4):
                equal(run.log(rank), f"{digest}  -\n" * 2, f"what rank {rank} found")
            places = ["/tmp", "/var/tmp", "/run", "/dev/shm", testbed.HOME]
            for host in bed.hosts:
                root = f"/proc/{bed.bed.init_pid(bed.bed.number(host))}/root"
                check(not (found := files_holding([root + place for place in places], secret)), f"{host}: {found}")
            check(not (found := files_holding([run.folder], secret)), f"bastion: {found}")


def scenario_staged_run_is_adopted_and_run_again(bed):
    """The adopter stages nothing: the staged files may no longer exist here. The run's own config.toml can start it again."""
    with tempfile.TemporaryDirectory() as own, Gates(bed) as gates:
        data = Path(own, "words")
        data.write_text("first\nlast\n")
        script = "head -1 {stage}/words; " + gates.wait("adopted") + "; tail -1 {stage}/words"
        settings = {**HOLD, "runner.stage": f'["{data}"]'}
        with Detached(bed, "sh", "-c", script, settings=settings) as run:
            all_say(run, "first\n", range(4))
            data.unlink()
            lose_supervisor(run)
            adopter = adopt(run)
            gates.open("adopted")
            ended(adopter, 20, 0)
            for rank in range(4):
                equal(run.log(rank), "first\nlast\n", f"stdout of rank {rank}")
            equal((run.path / "events.jsonl").read_text().count('"staged"'), 1, "times that files were staged")
            data.write_text("first\nlast\n")
            again = run.sortie("run", run.path / "config.toml")
            equal(again.returncode, 0, f"exit code of the run again ({again.stderr[-600:]})")
            check("staged on 4 hosts: all there already" in again.stderr, again.stderr[-600:])
            bed.expect_nothing_left(5)


def scenario_adopter_ends_what_a_lost_host_has(bed):
    """Runner and keeper die under an adopter. Daemons without environment are found by the cgroup of the first start."""
    program = "env -i setsid sleep 1000 >/dev/null 2>&1 & echo up; exec sleep 1000"
    with Detached(bed, "sh", "-c", program, settings=HOLD, hosts="h01,h03") as run:
        all_say(run, "up", range(2))
        lose_supervisor(run)
        adopter = adopt(run)
        _, pid = bed.ranks(run.id)[0]
        pids = [parent_of(parent_of(pid)), parent_of(pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in pids:
                os.kill(each, number)
        ended(adopter, 20, 5)
        bed.expect_nothing_left(5)
