"""Launches without faults: MPI over hosts, the environment of ranks, their output."""

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from pathlib import Path

from harness import BUILD, HOSTS, SANITIZED, Gates, Run, check, equal, testbed

RING = BUILD / "bin/e2e_mpi_ring"


def scenario_mpi_4_hosts_x_2(bed):
    with Run(bed, RING) as run:
        equal(run.wait(90), 0, "exit code")
        run.expect(r"ring ok size=8 sum=28")


def scenario_mpi_here_without_sshd(bed):
    with Run(bed, RING, hosts=None, slots=2) as run:
        equal(run.wait(90), 0, "exit code")
        run.expect(r"ring ok size=2 sum=1")


def scenario_environment_of_ranks(bed):
    script = ('echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $MASTER_ADDR $MASTER_PORT'
              ' $(hostname) $SORTIE_ATTEMPT $SORTIE_RUN_ID"')
    with Run(bed, "sh", "-c", script) as run:
        equal(run.wait(30), 0, "exit code")
        port = run.log(0).decode().split()[7]
        for rank in range(8):
            node = rank // 2
            words = run.log(rank).decode().split()
            check(words[7].isdigit() and words.pop(7) == port, f"MASTER_PORT of rank {rank}")
            equal(words, [str(rank), "8", str(rank % 2), "2", str(node), str(node), bed.address("h01"), f"h{node + 1:02d}", "1",
                          run.id()], f"environment of rank {rank}")


def scenario_arguments_byte_for_byte(bed):
    """No shell is involved: characters that are special to a shell arrive unchanged."""
    hostile = ["a b", "$(touch ~/owned)", "`id`", "'\"", "\\n", "line\nbreak", "*", "", "--hosts", ";|&<>", "\u00e4\u2713"]
    with Run(bed, "/usr/bin/python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *hostile, slots=1) as run:
        equal(run.wait(30), 0, "exit code")
        for rank in range(4):
            equal(run.log(rank).decode(), ascii(hostile) + "\n", f"arguments of rank {rank}")
    check("owned" not in bed.run_in("h01", "ls"), "a shell ran an argument")


def files_holding(roots, word):
    """Returns the files below `roots` that contain `word`, which no scenario has known for longer than ten minutes: /var/tmp may be
    full of older ones. Reads them in this process, so that `word` is on no command line."""
    found, since = [], time.time() - 600
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(OSError):
                    info = path.lstat()
                    if not stat.S_ISREG(info.st_mode) or info.st_ctime < since:
                        continue
                    if word.encode() in path.read_bytes():
                        found.append(str(path))
    return found


def scenario_a_secret_is_in_the_ranks_and_nowhere_else(bed):
    """Puts a secret into runner.env, runner.secret_env and a secrets file, then searches the command lines of all processes and
    the files of all hosts for it."""
    secret = "s3cr3t-" + os.urandom(12).hex()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    with tempfile.TemporaryDirectory() as folder, Gates(bed) as gates:
        script = 'for v in "$IN_CONFIG" "$HF_TOKEN" "$IN_FILE"; do printf %s "$v" | sha256sum; done; ' + gates.wait("seen")
        secrets, config = Path(folder, "secrets"), Path(folder, "job.toml")
        secrets.write_text(f"IN_FILE={secret}\n")
        secrets.chmod(0o600)
        config.write_text(f'[runner]\nenv = {{ HF_TOKEN = "{secret}" }}\nsecret_env = {{ IN_CONFIG = "{secret}" }}\n'
                          f'secrets_file = "{secrets}"\n[logger]\nlog_level = "debug"\n')
        with Run(bed, "sh", "-c", script, config=config, slots=1) as run:
            run.wait_for_ranks(4)
            for path in Path("/proc").glob("[0-9]*/cmdline"):  # of hosts and of the bastion
                with contextlib.suppress(OSError):
                    check(secret.encode() not in path.read_bytes(), f"{path} shows it")
            roots = {host: f"/proc/{bed.bed.init_pid(bed.bed.number(host))}/root" for host in HOSTS}
            places = ["/tmp", "/var/tmp", "/run", "/dev/shm", testbed.HOME]
            for host, root in roots.items():
                check(not (found := files_holding([root + place for place in places], secret)), f"{host}: {found}")
            check(not (found := files_holding([run.folder], secret)), f"bastion: {found}")
            gates.open("seen")
            equal(run.wait(40), 0, "exit code")
            check(secret not in run.text(), "sortie printed it")
            for rank in range(4):
                equal(run.log(rank).decode(), f"{digest}  -\n" * 3, f"what rank {rank} found")
            for host, root in roots.items():
                check(not (found := files_holding([root + place for place in places], secret)), f"{host}: {found}")
            check(not (found := files_holding([run.folder], secret)), f"bastion: {found}")


def scenario_output_in_full(bed):
    """40 MB from 8 ranks are complete in the log files, and the launcher does not buffer them."""
    script = "i=0; while [ $i -lt 5 ]; do head -c 1000000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done"
    with Run(bed, "sh", "-c", script) as run:
        peak = 0
        while run.process.poll() is None and run.elapsed() < 60:
            try:
                status = Path(f"/proc/{run.process.pid}/status").read_text()
            except OSError:
                break
            match = re.search(r"VmHWM:\s+(\d+)", status)
            peak = max(peak, int(match.group(1)) if match else 0)
            time.sleep(0.02)
        equal(run.wait(60), 0, "exit code")
        for rank in range(8):
            equal(len(run.log(rank)), 5 * 1000001, f"bytes of rank {rank}")
        check(SANITIZED or peak < 150_000, f"the launcher grew to {peak} KiB")


def scenario_prefix_names_rank_and_host(bed):
    with Run(bed, "sh", "-c", "echo out of $RANK; echo err of $RANK >&2", slots=1) as run:
        equal(run.wait(30), 0, "exit code")
        for rank in range(4):
            for stream in ("out", "err"):
                run.expect(rf"^\[{rank} h{rank + 1:02d}\] {stream} of {rank}$")


def scenario_runner_is_pushed_once(bed):
    bed.run_in("h01", "rm", "-rf", ".cache/sortie")
    with Run(bed, "true", hosts="h01") as run:
        equal(run.wait(30), 0, "exit code")
    first = bed.run_in("h01", "ls", "-li", ".cache/sortie")
    check(first.count("runner-") == 1, f"cache of h01: {first}")
    equal(bed.run_in("h01", "stat", "-c", "%a", ".cache/sortie").strip(), "700", "mode of the cache")
    with Run(bed, "true", hosts="h01") as run:
        equal(run.wait(30), 0, "exit code of the second run")
    equal(bed.run_in("h01", "ls", "-li", ".cache/sortie"), first, "cache after a second run")


def scenario_mpi_names_over_hosts(bed):
    """MPI_Publish_name on one host, MPI_Lookup_name on all."""
    with Run(bed, BUILD / "bin/pmix_test_mpi", "names", hosts="h[01-02]") as run:
        equal(run.wait(60), 0, "exit code")
        equal(sum(run.log(rank) == b"ok\n" for rank in range(4)), 4, "ranks that found the name")
        bed.expect_nothing_left(5)


def scenario_mpi_spawn_is_refused(bed):
    """The calling rank gets an error, the user one message. Nothing hangs if MPI treats the error as fatal."""
    with Run(bed, BUILD / "bin/pmix_test_mpi", "spawn", hosts="h[01-02]") as run:
        equal(run.wait(60), 0, "exit code")
        equal(run.text().count("MPI_Comm_spawn was refused: Sortie starts all ranks itself"), 1, "lines about it")
    with Run(bed, BUILD / "bin/pmix_test_mpi", "spawn-world", hosts="h[01-02]", settings={"runner.grace": "2s"}) as run:
        check(run.wait(60) != 0, "a fatal error of MPI ended well")
        run.expect(r"called MPI_Abort\(")
        bed.expect_nothing_left(5)
