"""Hosts reached through OpenSSH masters (`ssh -M`) while Sortie has no key for them: every verb, endings of runs, masters that end, and
masters with as many sessions as sshd allows."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from check import is_sound
from connect import ssh_connections, ssh_peers
from harness import HOSTS, SORTIE, Gates, Run, check, equal, run_to_end, ssh_config_variant, wait_until

QUICK = {"runner.grace": "1s"}


class Masters:
    """A folder of control sockets and two ssh configs: `with_key`, and `without_key`, which works only through a master."""

    def __init__(self, bed, *hosts, made=False):
        self.bed, self.hosts = bed, hosts or HOSTS
        self.folder = Path(tempfile.mkdtemp(prefix="sortie-cm-"))
        keys = f"  ControlPath {self.folder}/%h\n" + ("  ControlMaster auto\n  ControlPersist 1m\n" if made else "")
        with_key = re.sub(r"(?m)^(Host .*\n)", rf"\1{keys}", bed.ssh_config.read_text())
        self.with_key, self.without_key = self.folder / "with_key", self.folder / "without_key"
        self.with_key.write_text(with_key)
        nobody = self.folder / "nobody"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", nobody], check=True)
        self.without_key.write_text(re.sub(r"(?m)^  IdentityFile .*$", f"  IdentityFile {nobody}", with_key))

    def ssh(self, host, *options):
        return run_to_end("ssh", "-F", self.with_key, *options, host, seconds=30)

    def start(self):
        for host in self.hosts:
            done = self.ssh(host, "-M", "-N", "-f", "-E", "/dev/null")
            equal(done.returncode, 0, f"ssh -M to {host} ({done.stderr})")

    def pid(self, host):
        return int(re.search(r"pid=(\d+)", self.ssh(host, "-O", "check").stderr).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for host in self.hosts:
            self.ssh(host, "-O", "exit")
        shutil.rmtree(self.folder, ignore_errors=True)

    def sortie(self, verb, *arguments, hosts="h[01-04]", config=None, stdin=subprocess.DEVNULL):
        words = (SORTIE, verb, "--ssh-config", config or self.without_key, "--hosts", hosts, *arguments)
        return run_to_end(*words, text=False, stdin=stdin)


@contextlib.contextmanager
def running(masters, *program, hosts="h[01-04]", slots=2):
    with Run(masters.bed, *program, hosts=hosts, slots=slots, ssh_config=masters.without_key, settings=QUICK) as run:
        yield run


def scenario_every_verb_without_a_sign_in(bed):
    with Masters(bed) as masters:
        done = masters.sortie("exec", "--", "true")
        equal(done.returncode, 4, f"exit code without a master ({done.stderr})")
        masters.start()
        done = masters.sortie("exec", "--", "sh", "-c", "echo out; echo err >&2; [ $SORTIE_HOST = h02 ] && exit 7; exit 0")
        equal(done.returncode, 7, f"exit code ({done.stderr})")
        equal(sorted(done.stdout.decode().splitlines()), [f"[{host}] out" for host in HOSTS], "output")
        data = os.urandom(3 << 20)
        with tempfile.TemporaryDirectory() as own:
            sent = Path(own, "sent")
            sent.write_bytes(data)
            with open(sent, "rb") as file:
                done = masters.sortie("exec", "--stdin", "--", "sha256sum", stdin=file)
            equal(done.stdout.decode().count(hashlib.sha256(data).hexdigest()), 4, f"hashes ({done.stderr})")
            done = masters.sortie("push", sent, "/tmp/sent")
            equal(done.returncode, 0, f"exit code of push ({done.stderr})")
            done = masters.sortie("exec", "--output-dir", Path(own, "raw"), "--", "cat", "/tmp/sent")
            equal(done.returncode, 0, f"exit code of cat ({done.stderr})")
            for host in HOSTS:
                check(Path(own, "raw", f"{host}.out").read_bytes() == data, f"3 MiB from {host} are not what was sent")
            done = masters.sortie("pull", "/tmp/sent", Path(own, "back"))
            equal(done.returncode, 0, f"exit code of pull ({done.stderr})")
            back = [path for path in Path(own, "back").rglob("*") if path.is_file()]
            equal([path.read_bytes() == data for path in back], [True] * 4, f"files that came back ({back})")
            masters.sortie("exec", "--", "rm", "/tmp/sent")
        done = run_to_end(SORTIE, "ssh", "--ssh-config", masters.without_key, "h03", "hostname; exit 6", text=False)
        equal((done.returncode, done.stdout.decode()), (6, "h03\n"), f"sortie ssh ({done.stderr})")
        done = masters.sortie("check", "--json")
        found = {host["host"]: host for host in json.loads(done.stdout)["hosts"]}
        equal({name: host["through"] for name, host in found.items()},
              {host: f"{masters.folder}/{bed.address(host)}" for host in HOSTS}, "sockets that check names")
        networks = [one for host in found.values() for one in host["checks"] if one["check"] == "network"]
        equal([is_sound(one) for one in networks], [True] * 4, f"network checks ({networks})")
        bed.expect_nothing_left(15)


def scenario_runs_and_a_master_that_is_killed(bed):
    with Masters(bed) as masters:
        masters.start()
        with running(masters, "sh", "-c", "setsid sleep 1000 & exec sleep 1000") as run:
            host, pid = run.wait_for_ranks(8)[5]
            equal(host, "h03", "host of rank 5")
            os.kill(pid, signal.SIGKILL)
            equal(run.wait(30), 137, f"exit code ({run.text()[-2000:]})")
            run.expect(r"rank 5 on h03 .*SIGKILL")
            bed.expect_nothing_left(10)
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, 137)):
            with running(masters, "sleep", "1000") as run:
                run.wait_for_ranks(8)
                run.signal(number)
                equal(run.wait(30), code, "exit code")
                bed.expect_nothing_left(20)
        with running(masters, "sleep", "1000") as run:
            run.wait_for_ranks(8)
            os.kill(masters.pid("h02"), signal.SIGKILL)
            equal(run.wait(30), 5, f"exit code when a master is gone ({run.text()[-2000:]})")
            run.expect(r"h02: .*lost")
            bed.expect_nothing_left(20)


def scenario_eleven_sessions_on_one_master(bed):
    """sshd allows ten sessions per connection: Sortie signs in anew for the eleventh host, or reports why it can not."""
    with Masters(bed, "h01") as masters, Gates(bed) as gates:
        for path in (masters.with_key, masters.without_key):
            path.write_text(path.read_text().replace("Host h01\n", "Host h01 a*\n"))
        masters.start()
        names = "a[01-11]"
        line = f"echo here; {gates.wait('on')}"
        for config, code, lines in ((masters.with_key, 0, 11), (masters.without_key, 4, 10)):
            out = masters.folder / "out"
            with open(out, "w+b") as file:
                process = subprocess.Popen([SORTIE, "exec", "--ssh-config", config, "--hosts", names, "--fanout", "11", "--shell",
                                            "--set", "logger.log_level=debug", "--", line], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
                try:
                    text = lambda: out.read_text(errors="replace")  # noqa: E731
                    wait_until(lambda: text().count("] here") == lines, 30, f"{lines} sessions")
                    wait_until(lambda: "signing in anew" in text(), 30, "the end of the eleventh's tries")
                    gates.open("on")
                    equal(process.wait(30), code, f"exit code ({text()})")
                finally:
                    process.kill()
                    process.wait()
            (gates.folder / "on").unlink()
            if code:
                check("MaxSessions" in text(), text())
            bed.expect_nothing_left(20)  # sshd counts a session until its processes are gone
        bed.expect_nothing_left(15)


def scenario_a_jump_host_that_only_a_person_signs_in_to(bed):
    """As with two-factor sign-in: all hosts behind h01 are reached through its master. Without the master they are unreachable, and the
    error says why."""
    with Masters(bed, "h01") as masters:
        behind = {host: {"ProxyJump": "h01"} for host in HOSTS[1:]}
        gate = {"IdentityFile": masters.folder / "nobody", "ControlPath": f"{masters.folder}/%h"}
        behind["h03"]["ProxyJump"] = "h01,h02"  # a chain: its first hop uses the master
        config = ssh_config_variant(bed, masters.folder, h01=gate, **behind)
        hosts = "h[02-04]"
        done = masters.sortie("exec", "--", "true", hosts=hosts, config=config)
        equal(done.returncode, 4, f"exit code without a master ({done.stderr})")
        check(b"jump host h01: " in done.stderr, done.stderr)
        old = {host: ssh_connections(bed, host) for host in HOSTS}
        masters.start()
        done = masters.sortie("exec", "--", "sh", "-c", "echo $SORTIE_HOST is $(hostname)", hosts=hosts, config=config)
        equal(sorted(done.stdout.decode().splitlines()), [f"[{host}] {host} is {host}" for host in HOSTS[1:]], f"output ({done.stderr})")
        with Run(bed, "sleep", "1000", hosts=hosts, slots=1, ssh_config=config, settings=QUICK) as run:
            run.wait_for_ranks(3)
            equal(len(ssh_peers(bed, "h01", old["h01"])), 1, "connections to the sshd of h01: the master's")
            equal(set(ssh_peers(bed, "h04", old["h04"])), {bed.address("h01")}, "who is connected to the sshd of h04")
            equal(set(ssh_peers(bed, "h03", old["h03"])), {bed.address("h02")}, "who is connected to the sshd of h03")
            os.kill(masters.pid("h01"), signal.SIGKILL)
            equal(run.wait(30), 5, f"exit code when the master is gone ({run.text()[-2000:]})")
            bed.expect_nothing_left(15)


def scenario_a_jump_hosts_master_is_made(bed):
    """As `ssh` does with ControlMaster and ControlPersist: one sign-in at h01 serves all hosts behind it, also in later commands."""
    with Masters(bed, "h01", made=True) as masters:
        behind = {host: {"ProxyJump": "h01"} for host in HOSTS[1:]}
        gate = {"ControlPath": f"{masters.folder}/%h", "ControlMaster": "auto", "ControlPersist": "1m"}
        config = ssh_config_variant(bed, masters.folder, h01=gate, **behind)
        pids, old = set(), ssh_connections(bed, "h01")
        for _ in range(2):
            done = masters.sortie("exec", "--", "hostname", hosts="h[02-04]", config=config)
            equal(sorted(done.stdout.decode().splitlines()), [f"[{host}] {host}" for host in HOSTS[1:]], f"output ({done.stderr})")
            pids.add(masters.pid("h01"))
            equal(len(ssh_peers(bed, "h01", old)), 1, "connections to the sshd of h01: the master's")
        equal(len(pids), 1, f"masters of h01 ({pids})")
        done = masters.sortie("exec", "--set", "runner.ssh.control=no", "--", "true", hosts="h[02-04]", config=config)
        equal(done.returncode, 0, f"exit code when masters are left alone ({done.stderr})")
        bed.expect_nothing_left(15)


def scenario_masters_that_are_made(bed):
    """With ControlMaster and ControlPersist the first command creates the masters, the second one uses them, and they stay."""
    with Masters(bed, made=True) as masters:
        for _ in range(2):
            done = masters.sortie("exec", "--", "true", config=masters.with_key)
            equal(done.returncode, 0, f"exit code ({done.stderr})")
        pids = [masters.pid(host) for host in HOSTS]
        done = masters.sortie("exec", "--", "true")
        equal(done.returncode, 0, f"exit code without a key ({done.stderr})")
        done = masters.sortie("check", config=masters.with_key)
        check(b"through an ssh master: h" in done.stdout, done.stdout)
        equal([masters.pid(host) for host in HOSTS], pids, "masters")
        done = masters.sortie("exec", "--set", "runner.ssh.control=no", "--", "true")
        equal(done.returncode, 4, f"exit code when masters are left alone ({done.stderr})")
        bed.expect_nothing_left(15)


def scenario_masters_with_kept_connections(bed):
    """The background process of runner.ssh.persist finds and makes masters with the variables of the command, not with its own."""
    with Masters(bed, made=True) as masters:
        config, runtime = masters.folder / "by_variable", masters.folder / "runtime"
        config.write_text(masters.with_key.read_text().replace(f"{masters.folder}/%h", "${MASTERS_FOLDER}/%h"))
        runtime.mkdir(mode=0o700)
        environment = {**os.environ, "MASTERS_FOLDER": str(masters.folder), "XDG_RUNTIME_DIR": str(runtime)}
        words = (SORTIE, "exec", "--ssh-config", config, "--hosts", "h[01-02]", "--set", "runner.ssh.persist=20s", "--", "true")
        try:
            for _ in range(2):
                done = run_to_end(*words, env=environment)
                equal((done.returncode, done.stderr), (0, ""), "exec")
        finally:
            closed = run_to_end(SORTIE, "connections", "close", env=environment)
        equal(closed.stdout, "2 connections closed\n", "answer of close")
        for host in HOSTS[:2]:
            masters.pid(host)
        bed.expect_nothing_left(15)
