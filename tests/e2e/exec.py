"""`sortie exec`: one command on independent hosts."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from harness import HOSTS, PATIENCE, PROGRAMS, SORTIE, Gates, check, equal, run_to_end, wait_until
from machine_clock import communicate, wait_for_end


class Exec:
    """One `sortie exec`; as a context manager it never outlives the scenario."""

    def __init__(self, bed, *command, hosts="h[01-04]", options=(), ssh_config=None, stdin=subprocess.DEVNULL):
        self.folder = tempfile.TemporaryDirectory(prefix="sortie-e2e-")
        self.argv = [str(word) for word in (SORTIE, "exec", "--hosts", hosts, "--ssh-config", ssh_config or
                                            bed.ssh_config, *options, "--", *command)]
        self.files = [open(Path(self.folder.name) / name, "w+b") for name in ("out", "err")]
        self.process = subprocess.Popen(self.argv, stdin=stdin, stdout=self.files[0], stderr=self.files[1],
                                        start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if error:
            print(f"--- {self.argv}\n--- {self.process.returncode}\n{self.out()[-3000:]}\n--- stderr\n{self.err()[-3000:]}")
        self.folder.cleanup()

    def raw(self):
        return (Path(self.folder.name) / "out").read_bytes()

    def out(self):
        return self.raw().decode(errors="replace")

    def err(self):
        return (Path(self.folder.name) / "err").read_text(errors="replace")

    def wait(self, seconds):
        code = wait_for_end(self.process, seconds * PATIENCE)
        check(code is not None, f"sortie exec still runs after {seconds} s")
        return code if code >= 0 else 128 - code


def lines(text):
    return sorted(text.splitlines())


@contextlib.contextmanager
def silent(bed, host):
    """Takes the host's link down, without "no route to host" from the kernel after 3 s: connections fail only by timeout."""
    entry = (bed.address(host), "dev", bed.bed.bridge)
    run_to_end("ip", "neigh", "replace", *entry, "lladdr", "02:00:00:00:00:01", "nud", "permanent", check=True)
    bed.link(host, "down")
    try:
        yield
    finally:
        bed.link(host, "up")
        run_to_end("ip", "neigh", "del", *entry, check=True)


def scenario_outcome_table_with_a_host_down(bed):
    with silent(bed, "h04"), Gates(bed) as gates:
        script = f'echo here; case $SORTIE_HOST in h02) exit 7;; h03) {gates.wait("second")}; kill -9 $$;; esac'
        with Exec(bed, "sh", "-c", script, options=["--set", "runner.ssh.connect_timeout=10s"]) as run:
            wait_until(lambda: "[h02] here" in run.out(), 9, "the command on h02")
            bed.expect_nothing_left(20, ["h02"])  # the launcher then knows that its command has ended
            gates.open("second")
            expect_outcomes(run)


def expect_outcomes(run):
    equal(run.wait(40), 7, "exit code: the first cause's")
    equal(lines(run.out()), [f"[{host}] here" for host in HOSTS[:3]], "output")
    table = run.err().splitlines()
    equal(table[0], "3 of 4 hosts failed", "head of the table")
    check(re.fullmatch(r"  failed +h02 \(1\) +exit code 7", table[1]), table)
    check(re.fullmatch(r"  failed +h03 \(1\) +signal 9 \(SIGKILL\)", table[2]), table)
    check(re.fullmatch(r"  unreachable +h04 \(1\) +connect: .+", table[3]), table)


def scenario_a_program_that_is_not_there(bed):
    with Exec(bed, "no-such-program") as run:
        equal(run.wait(15), 127, "exit code")
        check(re.search(r"(?m)^  not_started  h\[01-04\] \(4\)  cannot start no-such-program: No such file", run.err()),
              run.err())


def scenario_timeout_ends_the_command_and_its_daemons(bed):
    began = time.monotonic()
    with Exec(bed, "env", "RANK=0", "/usr/bin/python3", "-S", PROGRAMS / "daemons.py", "wait",
              options=["--timeout", "8s", "--grace", "1s"]) as run:
        wait_until(lambda: sum(" daemon-" in line for line in bed.leftovers()) == 4 * 6, 10, "all daemons")
        equal(run.wait(40), 124, "exit code")
        check(time.monotonic() - began >= 7.9, "ended before its time")
        check(re.search(r"(?m)^  timeout  h\[01-04\] \(4\)  still ran after 8 s: ", run.err()), run.err())
        bed.expect_nothing_left(10)


def scenario_stdin_to_all_hosts(bed):
    data = os.urandom(10_000_000)
    want = hashlib.sha256(data).hexdigest()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        with Exec(bed, "sha256sum", options=["--stdin"], stdin=file) as run:  # a file
            equal(run.wait(30), 0, "exit code")
            equal(lines(run.out()), [f"[{host}] {want}  -" for host in HOSTS], "hashes")
    # A pipe, with hosts that start long after it was read, and one that reads nothing.
    with Exec(bed, "sh", "-c", "[ $SORTIE_HOST = h02 ] && exit; sleep 0.3; sha256sum",
              options=["--stdin", "--fanout", "2"], stdin=subprocess.PIPE) as run:
        run.process.stdin.write(data)
        run.process.stdin.close()
        equal(run.wait(30), 0, "exit code")
        equal(lines(run.out()), [f"[{host}] {want}  -" for host in HOSTS if host != "h02"], "hashes")


def scenario_an_idle_pipe_as_stdin_hangs_nothing(bed):
    reader, writer = os.pipe()
    with Exec(bed, "sh", "-c", "cat; echo end", stdin=reader) as run:  # without --stdin, stdin of the commands is /dev/null
        equal(run.wait(15), 0, "exit code")
        equal(lines(run.out()), [f"[{host}] end" for host in HOSTS], "output")
    with Exec(bed, "echo", "not waiting", options=["--stdin"], stdin=reader) as run:
        equal(run.wait(15), 0, "exit code")
    os.close(reader)
    os.close(writer)


def scenario_argv_byte_for_byte(bed):
    every = bytes(range(1, 256))
    arguments = [every, b"", b"a b", b"$(id)", b"line\nbreak", b"--hosts", b"--", b"'\"\\"]
    script = "import os,sys; print(b'|'.join(map(os.fsencode, sys.argv[1:])).hex())"
    argv = [os.fsencode(word) for word in (str(SORTIE), "exec", "--hosts", "h[01-04]", "--no-prefix", "--ssh-config",
                                           str(bed.ssh_config), "--", "python3", "-c", script)]
    done = run_to_end(*argv, *arguments, seconds=30, text=False)
    equal(done.returncode, 0, f"exit code ({done.stderr})")
    equal(done.stdout.decode().split(), [b"|".join(arguments).hex()] * 4, "arguments")
    with Exec(bed, "echo $((6 * 7)) | tr 2 3", options=["--shell", "--no-prefix"]) as run:
        equal(run.wait(15), 0, "exit code")
        equal(run.out(), "43\n" * 4, "output of the shell")


def scenario_fold(bed):
    script = ("if [ $SORTIE_HOST = h02 ]; then echo other; exit 3; fi; yes same | head -c 200000;"
              " echo; echo on stderr >&2")
    with Exec(bed, "sh", "-c", script, options=["--fold"]) as run:
        equal(run.wait(20), 3, "exit code")
        got = run.out().splitlines()
        equal(got[0], "==> h[01,03-04] (3)", "first group")
        equal(got[1:40001], ["same"] * 40000, "its output")
        equal(got[-3:], ["on stderr", "==> h02 (1): exit code 3", "other"], "the rest")


def scenario_output_dir_and_json(bed):
    with tempfile.TemporaryDirectory() as folder:
        script = r"printf 'a\377\n'; [ $SORTIE_HOST = h03 ] && printf oops >&2; true"
        with Exec(bed, "sh", "-c", script, options=["--json", "--output-dir", f"{folder}/deep/er"]) as run:
            equal(run.wait(15), 0, "exit code")
            events = [json.loads(line) for line in run.out().splitlines()]
        equal(sorted(os.listdir(f"{folder}/deep/er")), sorted([f"{host}.out" for host in HOSTS] + ["h03.err"]), "files")
        equal(Path(f"{folder}/deep/er/h01.out").read_bytes(), b"a\xff\n", "h01.out")
        equal(Path(f"{folder}/deep/er/h03.err").read_bytes(), b"oops", "h03.err")
    equal(events[0]["schema"], "sortie/exec/1", "schema")
    equal(events[-1]["exit_code"], 0, "exit code in the last event")
    equal(sorted(event["host"] for event in events if event["event"] == "exit"), HOSTS, "exits")
    said = [event for event in events if event["event"] == "output" and event["host"] == "h03"]
    check({"event": "output", "host": "h03", "stream": "stdout", "base64": "Yf8="} in said, said)
    check(any(event.get("line") == "oops" and event["whole"] is False for event in said), said)


def interrupted(bed, signals, command):
    """The grace is long: commands end in time only by the first signal, or by SIGKILL at once after the second."""
    with Exec(bed, *command, options=["--grace", "60s"]) as run:
        wait_until(lambda: run.out().count("started") == 4, 15, "all commands")
        for answer in ("ending all commands", "killing all commands now")[:signals]:
            run.process.send_signal(signal.SIGINT)  # two that are pending together would count as one
            wait_until(lambda answer=answer: answer in run.err(), 10, f"{answer!r}")
        equal(run.wait(30), 130, "exit code")
        check(re.search(r"(?m)^  stopped  h\[01-04\] \(4\)  signal", run.err()), run.err())
        bed.expect_nothing_left(10)


def scenario_ctrl_c_leaves_nothing(bed):
    interrupted(bed, 1, ["sh", "-c", "echo started; setsid sleep 1000 & sleep 1000"])


def scenario_ctrl_c_twice_is_at_once(bed):
    interrupted(bed, 2, ["sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done"])


def scenario_a_reader_that_goes_ends_all(bed):
    """`sortie exec -- yes | head -1`: commands end when the reader of their output has exited."""
    with Exec(bed, "true") as probe:
        probe.wait(15)
    head = run_to_end("sh", "-c", '"$@" | head -n 1', "sh", *probe.argv[:-1], "yes", seconds=30)
    check(re.fullmatch(r"\[h0[1-4]\] y\n", head.stdout), head)
    bed.expect_nothing_left(20)


def scenario_a_slow_reader_loses_nothing(bed):
    """2.6 MB from each host arrive complete through a pipe that is read late."""
    with Exec(bed, "true") as probe:
        probe.wait(15)
    process = subprocess.Popen([*probe.argv[:-1], "sh", "-c", "yes 0123456789012345678901234567890 | head -n 80000"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    time.sleep(1.5)
    data, _ = communicate(process, 60 * PATIENCE)
    equal(process.returncode, 0, "exit code")
    equal(data.count(b"\n"), 320_000, "lines")


def scenario_groups_and_exclusion(bed):
    with tempfile.TemporaryDirectory() as folder:
        groups = Path(folder) / "groups.toml"
        groups.write_text('odd = "h01,h03"\nall = ["@odd", "h[02,04]"]\n')
        with Exec(bed, "true", hosts="@all,!h02", options=["--groups", groups, "--exclude", "h04", "--fold"]) as run:
            equal(run.wait(15), 0, "exit code")
            equal(run.out(), "==> h[01,03] (2)\n", "hosts")


def scenario_one_slow_host_delays_no_other(bed):
    with silent(bed, "h02"), Exec(bed, "echo", "done", options=["--set", "runner.ssh.connect_timeout=12s"]) as run:
        wait_until(lambda: run.out().count("done") == 3, 10, "the other three")
        check(run.process.poll() is None, "it did not wait for the slow one")
        equal(run.wait(30), 4, "exit code")
