"""Kept connections (runner.ssh.persist): every verb uses them, and nothing is left on any host, whichever process ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from harness import HOSTS, PATIENCE, SANITIZED, SORTIE, check, equal, executable_of, in_time, parent_of, run_to_end, wait_until
from machine_clock import communicate, now, wait_for_end

STAY = {"runner.ssh.persist": "60s", "runner.heartbeat_timeout": "60s"}  # long, so that a busy host is not signed in to anew
HELD = {"runner.on_launcher_loss": "hold 30s"}


class Warm:
    """Commands of one user with a separate runtime folder. Kills the background process of the connections at the end."""

    def __init__(self, bed):
        self.bed = bed
        self.folder = tempfile.TemporaryDirectory(prefix="sortie-warm-")
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": self.folder.name}

    def __enter__(self):
        return self

    def __exit__(self, kind, _error, _trace):
        for pid in self.keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind:
            with contextlib.suppress(OSError):
                print("--- log\n" + Path(self.folder.name, "sortie/log").read_text())
        self.folder.cleanup()

    def argv(self, verb, *words, hosts="h[01-04]", **settings):
        options = [word for key, value in {**STAY, **settings}.items() for word in ("--set", f"{key}={value}")]
        return [str(word) for word in (SORTIE, *verb.split(), "--hosts", hosts, "--ssh-config", self.bed.ssh_config, *options, *words)]

    def run(self, verb, *words, code=0, seconds=60, **more):
        done = run_to_end(*self.argv(verb, *words, **more), seconds=seconds, env=self.environment)
        equal(done.returncode, code, f"exit code of {verb} ({done.stdout}{done.stderr})")
        check("no connection is kept" not in done.stderr, done.stderr)
        return done.stdout

    def exec(self, *words, **more):
        return self.run("exec", "--no-prefix", "--", *words, **more)

    def connections(self):
        done = run_to_end(SORTIE, "connections", "ls", "--json", seconds=30, env=self.environment)
        equal(done.returncode, 0, f"exit code of connections ls ({done.stderr})")
        return json.loads(done.stdout)["connections"]

    def wait_idle(self, hosts):
        wait_until(lambda: sorted((one["host"], one["state"]) for one in self.connections()) == [(host, "idle") for host in hosts],
                   20, lambda: f"idle connections to {hosts} ({self.connections()})")

    def keepers(self):
        """Returns the pids of background processes of this runtime folder, on this machine."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and b"keep-connections" in (entry / "cmdline").read_bytes() and \
                        f"XDG_RUNTIME_DIR={self.folder.name}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def signs_in(self):
        """Returns the pids of the sshd processes of all hosts. A command without a sign-in starts none."""
        pids = self.bed.bed.pids_by_netns()
        return sorted(pid for number in range(1, len(HOSTS) + 1) for pid in pids.get(self.bed.bed.netns(number), [])
                      if executable_of(pid) == "sshd")

    def expect_no_sign_in(self, before):
        """Waits until all sshd processes are in `before`. Some of these, from earlier scenarios, may end meanwhile. A new session is an
        sshd process for a moment, before it executes its program."""
        wait_until(lambda: set(self.signs_in()) <= set(before), 10,
                   f"no sshd process but those of before ({before}, {self.signs_in()})")

    def runners(self):
        """Returns the pids of the runners that stay. Shortly after a command each heads a chain: a process that waits for the next command, its
        keeper, and the process of the next command. Checks that nothing else runs."""
        def resting(host):
            parents = {pid: parent_of(pid) for pid, *_ in self.bed.processes(host)}
            chain = [pid for pid, parent in parents.items() if parent not in parents]
            while below := [pid for pid, parent in parents.items() if chain and parent == chain[-1]]:
                chain += below
            return len(chain) == len(parents) == 4
        wait_until(lambda: all(resting(host) for host in HOSTS), 10, lambda: f"a chain of four processes on each host ({self.bed.leftovers()})")
        return [self.bed.runner(host) for host in HOSTS]

    def waiting(self, host):
        """Returns the process on a host that waits for a conversation, or has one."""
        runner = self.bed.runner(host)
        return next(pid for pid, *_ in self.bed.processes(host) if parent_of(pid) == runner)

    def files(self):
        return sorted(path.name for path in Path(self.folder.name).rglob("*") if path.is_socket())


def scenario_every_verb_without_another_sign_in(bed):
    with Warm(bed) as warm, tempfile.TemporaryDirectory() as folder:
        equal(warm.exec("echo", "first").count("first"), 4, "lines")
        warm.wait_idle(HOSTS)
        equal(len(warm.keepers()), 1, "background processes")
        runners = warm.runners()
        before = warm.signs_in()
        # A command can end before the background process has seen its conversation end. The next one would get another runner on the same
        # connection, so each waits.
        def rested(result):
            warm.wait_idle(HOSTS)
            return result

        said = rested(warm.exec("sh", "-c", "echo $SORTIE_RUN_ID; tr '\\0' '\\n' < /proc/$PPID/environ | grep -c XDG_RUNTIME || true"))
        equal(said.splitlines().count("0"), 4, f"hosts that know nothing of the keeper's environment ({said})")
        sent, back = Path(folder, "sent"), Path(folder, "back")
        sent.write_bytes(os.urandom(3 << 20))
        rested(warm.run("push", sent, "sent-by-warm"))
        rested(warm.run("pull", "sent-by-warm", back))
        copies = [path for path in back.rglob("*") if path.is_file()]
        equal(len(copies), 4, "files that came back")
        check(all(path.read_bytes() == sent.read_bytes() for path in copies), "a file is not what was sent")
        rested(warm.exec("rm", "sent-by-warm"))
        checked = json.loads(rested(run_to_end(*warm.argv("check", "--json"), env=warm.environment)).stdout)
        equal(sorted(host["host"] for host in checked["hosts"]), HOSTS, "hosts of check")
        rested(warm.exec("false", code=1))
        rested(warm.exec("no-such-program", code=127))
        warm.expect_no_sign_in(before)
        equal(warm.runners(), runners, "runners after all verbs")
        # Ranks of a run with a hold outlive a connection. Any other run signs in by itself, and its runners end with it.
        warm.run("run", "--slots", "1", "--", "true", **HELD)
        warm.wait_idle(HOSTS)
        warm.expect_no_sign_in(before)
        warm.run("run", "--slots", "1", "--", "true", seconds=60)
        equal(warm.runners(), runners, "runners after runs")
        done = run_to_end(SORTIE, "connections", "close", seconds=30, env=warm.environment)
        equal(done.stdout, "4 connections closed\n", "answer of close")
        bed.expect_nothing_left(15)
        wait_until(lambda: not warm.keepers() and not warm.files(), 10, "the end of the background process and its socket")


def memory_has(pid, words):
    """Whether the bytes are in the writable memory of a process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            area, rights, *_ = line.split()
            if "w" not in rights:
                continue
            begin, end = (int(word, 16) for word in area.split("-"))
            if SANITIZED and end - begin > 1 << 30:  # a sanitizer's shadow memory
                continue
            memory.seek(begin)
            if words in memory.read(end - begin):
                return True
    return False


def scenario_secrets_of_one_command_are_not_there_for_the_next(bed):
    secret = os.urandom(16).hex()
    with Warm(bed) as warm:
        warm.exec("true")
        warm.wait_idle(HOSTS)
        runners = warm.runners()
        own = {**warm.environment, "THEIR_TOKEN": secret}
        words = warm.argv("run", "--slots", "1", "--", "sh", "-c", "echo ${#THEIR_TOKEN}; read -r on < /tmp/go", **HELD,
                          **{"runner.secret_env.THEIR_TOKEN": "(secret)"})
        for host in HOSTS:
            bed.run_in(host, "mkfifo", "-m", "666", "/tmp/go")
        run = subprocess.Popen(words, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = 0
        while told < len(HOSTS):  # Sortie may print lines, too
            line = run.stdout.readline()
            check(line, f"only {told} ranks have the secret")
            told += line.endswith(" 32\n")
        check(all(memory_has(warm.waiting(host), secret.encode()) for host in HOSTS), "the process of a conversation is not found by its secret")
        for host in HOSTS:
            bed.run_in(host, "sh", "-c", "echo on > /tmp/go; rm /tmp/go")
        equal(wait_for_end(run, 30 * PATIENCE), 0, "exit code of the run")
        run.stdout.close()
        warm.wait_idle(HOSTS)
        equal(warm.runners(), runners, "runners after the run")
        for host in HOSTS:
            for pid in (bed.runner(host), warm.waiting(host)):
                # The last command's process may live for a moment after its connection is idle. A new process would keep the secret.
                wait_until(lambda pid=pid: not memory_has(pid, secret.encode()), 10,
                           f"{host}: a process of the next command without the secret of the last")
        equal(warm.exec("sh", "-c", "echo \"<$THEIR_TOKEN>\"").splitlines(), ["<>"] * 4, "what the next command has of it")
        run_to_end(SORTIE, "connections", "close", seconds=30, env=warm.environment)
        bed.expect_nothing_left(15)


def scenario_kill_matrix(bed):
    """Each kind of process is killed, with idle connections and during a command: nothing is left, and the next command works."""
    with Warm(bed) as warm:
        def all_keepers():
            return warm.keepers()

        victims = {"background process": all_keepers, "runner": lambda: [bed.runner("h02")],
                   "process of a conversation": lambda: [warm.waiting("h02")],
                   "sshd of a connection": lambda: [parent_of(bed.runner("h03"))]}
        for busy in (False, True):
            for name, pids in victims.items():
                warm.exec("true")
                warm.wait_idle(HOSTS)
                warm.runners()
                command = None
                if busy:
                    command = subprocess.Popen(warm.argv("exec", "--", "sh", "-c", "echo up; setsid sleep 1000 & sleep 1000"),
                                               env=warm.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                               stderr=subprocess.DEVNULL)
                    for _ in HOSTS:
                        command.stdout.readline()
                for pid in pids():
                    os.kill(pid, signal.SIGKILL)
                if command:
                    if name != "background process":
                        command.send_signal(signal.SIGINT)
                    check(wait_for_end(command, 40 * PATIENCE),
                          f"a command whose {name} was killed ends well, or not at all: {command.returncode}")
                    command.stdout.close()
                if name == "background process":
                    bed.expect_nothing_left(20)
                equal(warm.exec("echo", "next").count("next"), 4, f"lines after the {name} was killed (busy: {busy})")
                warm.wait_idle(HOSTS)
                warm.runners()
        run_to_end(SORTIE, "connections", "close", seconds=30, env=warm.environment)
        bed.expect_nothing_left(15)


def scenario_a_host_that_is_gone_and_back(bed):
    """The network of a host goes down while its connection is idle: its runner ends by itself, and the next command is not delayed."""
    short = {"runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "2500ms"}
    with Warm(bed) as warm:
        warm.exec("true", **short)
        warm.wait_idle(HOSTS)
        bed.link("h04", "down")
        bed.expect_nothing_left(70, hosts=["h04"])
        bed.link("h04", "up")
        began = now()
        equal(warm.exec("echo", "back").count("back"), 4, "lines")
        in_time(began, 10, "the next command")
        wait_until(lambda: all(one["state"] == "idle" for one in warm.connections()), 10, "idle connections")
        # Down again: the background process notices it only with the next command, which reports it and has the others' output.
        bed.link("h04", "down")
        equal(warm.exec("echo", "here", code=4, **short, **{"runner.ssh.connect_timeout": "5s"}).count("here"), 3, "lines")
        bed.link("h04", "up")
        run_to_end(SORTIE, "connections", "close", seconds=30, env=warm.environment)
        bed.expect_nothing_left(45)


def is_reached(bed, host):
    """Whether the host accepts connections. The kernel has no route to a neighbour that did not answer, also just after its link is up."""
    with contextlib.suppress(OSError), socket.create_connection((bed.address(host), 22), 1):
        return True
    return False


def scenario_the_bastion_is_gone(bed):
    """All its processes are gone, and no host is notified: runners end by themselves, idle ones and those with a command."""
    short = {"runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "2500ms"}
    with Warm(bed) as warm:
        for busy in (False, True):
            warm.exec("true", **short)
            warm.wait_idle(HOSTS)
            command = None
            if busy:
                command = subprocess.Popen(warm.argv("exec", "--", "sh", "-c", "echo up; setsid sleep 1000 & sleep 1000", **short),
                                           env=warm.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                for _ in HOSTS:
                    command.stdout.readline()
            for host in HOSTS:
                bed.link(host, "down")
            for pid in warm.keepers():
                os.kill(pid, signal.SIGKILL)
            if command:
                command.kill()
                command.wait()
                command.stdout.close()
            bed.expect_nothing_left(70)
            for host in HOSTS:
                bed.link(host, "up")
            wait_until(lambda: all(is_reached(bed, host) for host in HOSTS), 30, "hosts that are reached again")
        equal(warm.exec("echo", "back").count("back"), 4, "lines after the bastion is back")
        run_to_end(SORTIE, "connections", "close", seconds=30, env=warm.environment)
        bed.expect_nothing_left(15)


def scenario_their_time_is_over(bed):
    with Warm(bed) as warm:
        short = {"runner.ssh.persist": "1s"}
        warm.exec("true", **short)
        bed.expect_nothing_left(15)
        wait_until(lambda: not warm.keepers() and not warm.files(), 10, "the end of the background process")
        warm.exec("true", **short)
        # A command that is killed leaves nothing either.
        command = subprocess.Popen(warm.argv("exec", "--", "sh", "-c", "echo up; sleep 1000", **short), env=warm.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in HOSTS:
            command.stdout.readline()
        command.kill()
        command.wait()
        command.stdout.close()
        bed.expect_nothing_left(15)


def scenario_a_run_outlives_its_background_process(bed):
    """With a hold a run uses kept connections. The loss of the background process costs it no rank and no line."""
    with Warm(bed) as warm:
        warm.exec("true")
        warm.wait_idle(HOSTS)
        before = warm.signs_in()
        script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo down"
        run = subprocess.Popen(warm.argv("run", "--slots", "1", "--", "sh", "-c", script, **HELD), env=warm.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in HOSTS:
            check("up" in run.stdout.readline(), "a rank did not start")
        warm.expect_no_sign_in(before)
        ranks = bed.ranks()
        for pid in warm.keepers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(warm.connections()) == 4, 30, "connections of a new background process")
        equal(bed.ranks(), ranks, "the ranks")
        for host in HOSTS:
            bed.run_in(host, "touch", "/tmp/go")
        said, errors = communicate(run, 60 * PATIENCE)
        equal((run.returncode, said.count("down")), (0, 4), f"exit code, and lines of the end ({said}{errors})")
        for host in HOSTS:
            bed.run_in(host, "rm", "/tmp/go")
        run_to_end(SORTIE, "connections", "close", seconds=30, env=warm.environment)
        bed.expect_nothing_left(15)
