"""`sortie ssh` and `sortie shell` in interactive use, at a pseudo terminal that the scenario controls."""

import array
import fcntl
import os
import re
import select
import signal
import stat
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from harness import HOSTS, PATIENCE, SORTIE, Failure, check, equal, run_to_end, wait_until
from machine_clock import now, wait_for_end
from warm import Warm


class Terminal:
    """A program at its own pseudo terminal; as a context manager it never outlives the scenario."""

    def __init__(self, *argv, rows=31, columns=97, environment=None):
        self.master, self.slave = os.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.said = ""
        self.read_to = 0
        self.argv = [str(word) for word in argv]
        own = {"TERM": "vt220", "EDITRC": "/dev/null", "LC_ALL": "C.UTF-8", **(environment or {})}
        self.process = subprocess.Popen(self.argv, stdin=self.slave, stdout=self.slave, stderr=self.slave, env={**os.environ, **own},
                                        start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.take(0)
        if error:
            print(f"--- {self.argv}\n--- {self.process.returncode}\n{self.said[-4000:]!r}")
        os.close(self.master)
        os.close(self.slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def take(self, seconds):
        while select.select([self.master], [], [], seconds)[0]:
            self.said += os.read(self.master, 65536).decode(errors="replace")
            seconds = 0

    def expect(self, pattern, seconds=40):
        """Waits for the pattern in the output after the previous match. Returns the match."""
        deadline = now() + seconds * PATIENCE
        while True:
            if found := re.compile(pattern).search(self.said, self.read_to):
                self.read_to = found.end()
                return found
            check(now() < deadline, f"{pattern!r} was not said within {seconds} s")
            self.take(0.05)

    def wait(self, seconds=40):
        deadline = now() + seconds * PATIENCE
        while (code := self.process.poll()) is None:
            if now() > deadline:
                raise Failure(f"still runs after {seconds} s")
            self.take(0.02)  # reads on, so that the program does not block in write
        self.take(0)
        equal(termios.tcgetattr(self.slave), self.before, "the terminal's modes after the end")
        return code if code >= 0 else 128 - code


class Way:
    """`sortie ssh` to h01 with its own sign-in, or over a connection that the background process keeps."""

    def __init__(self, bed, warm=None):
        self.bed, self.warm = bed, warm
        self.environment = {"XDG_RUNTIME_DIR": warm.folder.name} if warm else {}

    def __enter__(self):
        """Establishes the kept connection. No sign-in may follow."""
        if self.warm:
            self.warm.exec("true", hosts="h01")
            self.warm.wait_idle(["h01"])
        self.before = self.signs_in()
        return self

    def __exit__(self, kind, _error, _trace):
        if self.warm and not kind:
            # The connection is still kept, by the same sshd.
            self.warm.wait_idle(["h01"])
            self.warm.expect_no_sign_in(self.before)

    def signs_in(self):
        return self.warm.signs_in() if self.warm else []

    def ssh(self, *words):
        options = ["--set", "runner.ssh.persist=60s"] if self.warm else []
        return [SORTIE, "ssh", "--ssh-config", self.bed.ssh_config, *options, "h01", *words]

    def person(self, *words):
        return Terminal(*self.ssh(*words), environment=self.environment)

    def run(self, *words, **more):
        return run_to_end(*self.ssh(*words), seconds=30, env={**os.environ, **self.environment}, **more)

    def nothing_left(self):
        if not self.warm:
            return self.bed.expect_nothing_left(10, ["h01"])
        self.warm.wait_idle(["h01"])
        wait_until(lambda: not any("sleep" in line for line in self.bed.leftovers(["h01"])), 10, "the end of what ran in the terminal")


def both_ways(bed):
    yield Way(bed)
    with Warm(bed) as warm:
        yield Way(bed, warm)


def shell(bed, *options, hosts="h[01-04]"):
    return [SORTIE, "shell", "--ssh-config", bed.ssh_config, "--hosts", hosts, *options]


def scenario_ssh_is_a_terminal_on_a_host(bed):
    for way in both_ways(bed):
        with way:
            is_a_terminal(bed, way)


def is_a_terminal(bed, way):
    with way.person() as person:
        person.type("stty size; echo $TERM at $((40+2))\r")
        person.expect(r"31 97\r\nvt220 at 42\r\n")
        person.resize(44, 55)
        person.type("until [ \"$(stty size)\" = '44 55' ]; do sleep 0.05; done; echo resized $((1+1))\r")
        person.expect(r"resized 2\r\n")
        person.type("sleep 1000; echo not $((1+2))\r")
        wait_until(lambda: any("sleep 1000" in line for line in bed.leftovers(["h01"])), 10, "the sleep there")
        person.type("\x03")
        person.type("echo back $((2+2))\r")
        person.expect(r"back 4\r\n")
        check("not 3" not in person.said, "the line went on after Ctrl-C")
        person.type("exit 7\r")
        equal(person.wait(), 7, "exit code: the shell's there")


def scenario_ssh_gives_the_terminal_back(bed):
    for way in both_ways(bed):
        with way:
            gives_the_terminal_back(bed, way)
        way.__enter__()
        loses_the_connection(way)


def gives_the_terminal_back(bed, way):
    with way.person() as person:  # ~.
        person.type("echo here $((1+1))\r")
        person.expect(r"here 2\r\n")
        person.type("\r~?")
        person.expect("end the connection")
        person.type("~.")
        equal(person.wait(), 130, "exit code after ~.")
    way.nothing_left()
    for number in (signal.SIGTERM, signal.SIGHUP):
        with way.person() as person:
            person.type("echo here $((1+1))\r")
            person.expect(r"here 2\r\n")
            person.process.send_signal(number)
            equal(person.wait(), 128 + number, "exit code after a signal")
    with way.person() as person:  # when sortie is killed, the processes on the host get SIGHUP
        person.type("echo here $((1+1)); sleep 1000\r")
        person.expect(r"here 2\r\n")
        # Between fork and exec the process is in a process group that gets no SIGHUP from the terminal.
        wait_until(lambda: any("sleep 1000" in line for line in bed.leftovers(["h01"])), 10, "the sleep there")
        person.process.kill()
        person.process.wait()
        way.nothing_left()


def loses_the_connection(way):
    with way.person() as person:
        person.type("echo here $((1+1))\r")
        person.expect(r"here 2\r\n")
        person.type("kill -9 $PPID\r")
        equal(person.wait(), 5, "exit code without the connection")
        person.expect("sortie: h01: lost: ")
    if not way.warm:
        return
    way.__enter__()
    with way.person() as person:
        person.type("echo here $((1+1))\r")
        person.expect(r"here 2\r\n")
        for pid in way.warm.keepers():
            os.kill(pid, signal.SIGKILL)
        equal(person.wait(), 5, "exit code without the background process")
        person.expect("sortie: h01: lost: ")
    way.bed.expect_nothing_left(10, ["h01"])
    with way.person("echo signed in anew") as person:
        equal(person.wait(), 0, "exit code when nothing is kept")
    equal(way.warm.keepers(), [], "background processes: sortie ssh starts none")


def scenario_ssh_runs_a_command_without_a_terminal(bed):
    for way in both_ways(bed):
        with way:
            runs_a_command(way)


def runs_a_command(way):
    data = os.urandom(300_000)
    done = way.run("test", "-t", "0", "||", "cat;", "echo", "$0", "$((6*7))", ">&2;", "exit", "9", text=False, input=data)
    equal(done.returncode, 9, f"exit code ({done.stderr})")
    equal(done.stdout == data, True, "every byte came back")
    check(done.stderr.endswith(b" 42\n"), done.stderr)
    done = way.run("kill -15 $$", text=False)
    equal(done.returncode, 143, "exit code of a signal there")
    done = way.run("-t", "tty; stty size")
    check(re.fullmatch(r"/dev/pts/\d+\n24 80\n", done.stdout), done)
    with way.person("-t", "stty size; exit 4") as person:
        equal(person.wait(), 4, "exit code of a command in a terminal")
        person.expect("31 97\r\n")


def scenario_ssh_ends_though_nobody_reads_its_output(bed):
    """SIGTERM while stdout is a full pipe: the rest of the output is dropped, and the command on the host ends."""
    for way in both_ways(bed):
        with way, subprocess.Popen(way.ssh("yes"), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **way.environment}) as process:
            process.stdout.read(1)
            wait_until(lambda: unread(process.stdout) == unread(process.stdout, 0.5) > 0, 20, "a pipe that is full")
            process.terminate()
            equal(wait_for_end(process, 20), 143, "exit code")
        wait_until(lambda: not any("yes" in line for line in bed.leftovers(["h01"])), 20, "the end of the command")


def unread(pipe, pause=0.0):
    """Returns the number of unread bytes in a pipe, after a pause in seconds."""
    time.sleep(pause)
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def scenario_shell_is_a_prompt_for_all_hosts(bed):
    with Terminal(*shell(bed)) as person:
        person.expect(r"h\[01-04\] \(4\)> ")
        person.type("cd /usr; export WORD='a b'; N=5\r")
        person.expect(r"h\[01-04\] \(4\)> ")
        person.type("pwd; echo \"$WORD\" $N\r")
        person.expect(r"==> h\[01-04\] \(4\)\r\n/usr\r\na b 5\r\n")
        person.type("[ $SORTIE_HOST != h02 ]\r")
        person.expect(r"==> h02 \(1\): exit code 1\r\n")
        person.expect(r"h\[01-04\] \(4\) \[1\]> ")
        person.type("@h02 echo was $? on $SORTIE_HOST\r")
        person.expect(r"==> h02 \(1\)\r\nwas 1 on h02\r\n")
        person.type("!echo here $((1+1)); exit 4\r")
        person.expect(r"here 2\r\n")
        person.expect(r"\[4\]> ")
        person.type("@h09 id\r")
        person.expect(r"h09 is not among the hosts")
        person.type("@h0\t1 echo $((3*4))\r")
        person.expect(r"==> h01 \(1\)\r\n12\r\n")
        person.expect(r"h\[01-04\] \(4\)> ")
        # Ctrl-C ends the line on all hosts, whatever it is doing. The shells and their state stay.
        person.type("while :; do sleep 1000; done; echo not $((1+2))\r")
        wait_until(lambda: sum("sleep 1000" in line for line in bed.leftovers()) == 4, 15, "the line on all hosts")
        person.type("\x03")
        person.expect(r"\[130\]> ")
        check("not 3" not in person.said, "the line went on after Ctrl-C")
        wait_until(lambda: not any("sleep 1000" in line for line in bed.leftovers()), 10, "the end of what the line ran")
        person.type("pwd; echo $N\r")
        person.expect(r"==> h\[01-04\] \(4\)\r\n/usr\r\n5\r\n")
        person.expect(r"\(4\)> ")
        person.type("half a line\x03")
        person.expect(r"\^C\r\n.*\[130\]> ")
        person.type("\x04")
        equal(person.wait(), 130, "exit code: the last line's")
    bed.expect_nothing_left(15)
    history = Path(os.environ["XDG_STATE_HOME"]) / "sortie/shell_history"
    equal(stat.S_IMODE(history.stat().st_mode), 0o600, "mode of the history")
    check("\npwd; echo $N\n" in history.read_text(), "the history has the lines")
    with Terminal(*shell(bed, hosts="h[01-02]")) as person:  # a later prompt has the same history
        person.expect(r"\(2\)> ")
        person.type("\x10\x01\x0becho again\r")  # Ctrl-P, Ctrl-A, Ctrl-K: previous line, to its start, delete to its end
        person.expect(r"==> h\[01-02\] \(2\)\r\nagain\r\n")
        person.type("exit 6\r")
        equal(person.wait(), 6, "exit code of exit 6")


def scenario_shell_goes_on_without_a_host_that_dies(bed):
    with Terminal(*shell(bed)) as person:
        person.expect(r"h\[01-04\] \(4\)> ")
        person.type("echo begun; [ $SORTIE_HOST = h03 ] && sleep 1000\r")
        wait_until(lambda: any("sleep 1000" in line for line in bed.leftovers(["h03"])), 15, "the line on h03")
        os.kill(bed.runner("h03"), signal.SIGKILL)  # while a line runs
        person.expect(r"h03: lost: the runner ended")
        person.expect(r"\(3 of 4\)|\(3\) of 4")
        os.kill(bed.runner("h01"), signal.SIGKILL)  # at the prompt
        person.expect(r"h01: lost: the runner ended")
        person.type("echo on $((1+1))\r")
        person.expect(r"==> h\[02,04\] \(2\)\r\non 2\r\n")
        person.type("@h04 exit 3 || exit\r")
        person.expect(r"h04: stopped: its shell has ended")
        person.type("?\r")
        person.expect(r"h02 \(1\)  ready\r\n")
        person.type("true\r")
        person.expect(r"\(1\) of 4> ")
        person.type("N=7\r")
        person.expect(r"\(1\) of 4> ")
        person.type("+h[01,03]\r")  # back, with new shells
        person.expect(r"h\[01-03\] \(3\) of 4> ")
        person.type("echo N is $N\r")
        person.expect(r"N is 7\r\n")
        person.expect(r"==> h\[01,03\] \(2\)\r\nN is\r\n|N is\r\n")
        person.type("?\r")
        person.expect(r"h\[01-03\] \(3\)  ready\r\n")
        person.type("-h02\r")
        person.expect(r"h\[01,03\] \(2\) of 3> ")
        person.type("-h[01,03]\r")
        person.expect(r"no host would be left")
        person.type("+h09\r")
        person.expect(r"h09: unreachable: ")
        person.expect(r"\[5\]> ")
        person.type("-h09\r")
        person.type("+h02\r")
        person.expect(r"h\[01-03\] \(3\)")
        person.type("echo N is $N\r")
        person.expect(r"N is 7\r\n")
        person.type("exit\r")
        equal(person.wait(), 5, "exit code: a host was lost")
    bed.expect_nothing_left(10)


def scenario_shell_runs_a_script(bed):
    def run(text, *options, code, hosts="h[01-04]"):
        done = run_to_end(*shell(bed, *options, hosts=hosts), input=text)
        equal(done.returncode, code, f"exit code ({done.stderr})")
        return done

    done = run("cd /usr\nfor i in 1 2; \\\ndo echo $i; done\npwd\ncat\n@h02 false\n", code=1)
    equal(done.stdout, "==> h[01-04] (4)\n1\n2\n==> h[01-04] (4)\n/usr\n==> h02 (1): exit code 1\n", "output")
    run("exit 3\nfalse\n", code=3)
    done = run("false\ntrue", code=0)
    equal(done.stderr, "", "stderr: nothing of the end of the shells")
    done = run("!echo mine; exit 2\n", code=2)
    equal(done.stdout, "mine\n", "output of a command of this machine")
    done = run("echo here\n", "--set", "runner.ssh.resolve_timeout=5s", code=4, hosts="h[01-02],nowhere.invalid")
    equal(done.stdout, "==> h[01-02] (2)\nhere\n", "output without a host")
    check("nowhere.invalid: unreachable: " in done.stderr, done.stderr)
    bed.expect_nothing_left(15)


def scenario_shell_shows_output_as_it_comes(bed):
    """After `=`, as in clush, output is shown as it arrives; after another `=` it is folded again."""
    with Terminal(*shell(bed)) as person:
        person.expect(r"\(4\)> ")
        person.type("=\r")
        person.expect(r"as it comes")
        person.type("echo first; sleep 1000; echo second\r")
        for _ in range(4):
            person.expect(r"\[h0[1-4]\](\x1b\[0m)? first\r\n")
        # bash may lose an interrupt between its fork and the exec.
        wait_until(lambda: sum("sleep 1000" in line for line in bed.leftovers()) == 4, 15, "the sleep on all hosts")
        person.type("\x03")
        person.expect(r"h\[01-04\] \(4\): exit code 130(\x1b\[0m)?\r\n")
        check(not re.search(r"\[h0[1-4]\](\x1b\[0m)? ?\r\n", person.said), "the shells' own answer to an interrupt is shown")
        person.expect(r"\[130\]> ")
        check("second" not in person.said.split("echo second")[-1], "the line went on after Ctrl-C")
        person.type("@h[01-02] head -c 3000000 /dev/zero | tr '\\0' x | fold -w 99; printf end-of-$SORTIE_HOST\r")  # more than is buffered
        wanted = {f"end-of-h0{number}" for number in (1, 2)}
        wait_until(lambda: person.take(0.2) or all(f"{end}\r\n" in person.said for end in wanted), 60, "the ends of long output")
        person.expect(r"\(4\)> ")
        person.type("=\r")
        person.expect(r"folded")
        person.type("echo again\r")
        person.expect(r"==> h\[01-04\] \(4\)\r\nagain\r\n")
        person.type("exit\r")
        equal(person.wait(), 0, "exit code")
    bed.expect_nothing_left(15)


def scenario_shell_on_kept_connections(bed):
    """A prompt over kept connections needs no sign-in and leaves the connections as they were. Without the background process all hosts
    are lost."""
    with Warm(bed) as warm:
        warm.exec("true")
        warm.wait_idle(HOSTS)
        before = warm.signs_in()
        prompt = shell(bed, "--set", "runner.ssh.persist=60s", "--set", "runner.heartbeat_timeout=60s")
        with Terminal(*prompt, environment={"XDG_RUNTIME_DIR": warm.folder.name}) as person:
            person.expect(r"\(4\)> ")
            person.type("cd /usr; sleep 1000 &\r")
            person.expect(r"\(4\)> ")
            person.type("pwd\r")
            person.expect(r"==> h\[01-04\] \(4\)\r\n/usr\r\n")
            warm.expect_no_sign_in(before)
            person.type("exit\r")
            equal(person.wait(), 0, "exit code")
        warm.wait_idle(HOSTS)
        warm.expect_no_sign_in(before)
        wait_until(lambda: not any("sleep 1000" in line for line in bed.leftovers()), 10, "the end of what the shells started")
        with Terminal(*prompt, environment={"XDG_RUNTIME_DIR": warm.folder.name}) as person:  # a prompt that is killed
            person.expect(r"\(4\)> ")
            person.type("setsid sleep 1000 & sleep 1000\r")
            wait_until(lambda: sum(line.endswith("sleep 1000") for line in bed.leftovers()) == 8, 15, "what the line runs")
            person.process.kill()
            person.process.wait()
            wait_until(lambda: not any("sleep 1000" in line for line in bed.leftovers()), 15, "the end of what the shells started")
        warm.exec("true")
        warm.wait_idle(HOSTS)
        with Terminal(*prompt, environment={"XDG_RUNTIME_DIR": warm.folder.name}) as person:
            person.expect(r"\(4\)> ")
            for pid in warm.keepers():
                os.kill(pid, signal.SIGKILL)
            for _ in HOSTS:
                person.expect(r"h0[1-4]: lost: ")
            person.type("\r")
            person.expect(r"no host is left")
            equal(person.wait(), 5, "exit code without the background process")
        bed.expect_nothing_left(15)


def shells_wait(bed, hosts):
    return all(state == "S" for host in hosts for _, _, _, state, command in bed.processes(host)
               if command.startswith("bash "))


def scenario_shell_leaves_nothing_however_it_ends(bed):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        with Terminal(*shell(bed)) as person:
            person.expect(r"\(4\)> ")
            person.type("sleep 1000 & setsid sleep 1000 & sleep 1000\r")
            wait_until(lambda: sum(line.endswith("sleep 1000") for line in bed.leftovers()) >= 12, 15, "all processes")
            person.process.send_signal(number)
            if number == signal.SIGKILL:
                person.process.wait()
            else:
                equal(person.wait(), 128 + number, "exit code")
            bed.expect_nothing_left(20)
    # A line that ignores INT and TERM: a third Ctrl-C ends the shells.
    with Terminal(*shell(bed, hosts="h[01-02]")) as person:
        person.expect(r"\(2\)> ")
        person.type("(trap '' INT TERM; while :; do sleep 1000; done)\r")
        # A shell that does not wait for the line yet would take the interrupt itself and drop the line.
        wait_until(lambda: sum("sleep 1000" in line for line in bed.leftovers()) >= 2 and shells_wait(bed, ["h01", "h02"]),
                   15, "the line")
        for said in ("INT sent to the command on", "TERM sent to the command on", "ending the shells of"):
            person.type("\x03")
            person.expect(rf"{said} h\[01-02\] \(2\)")
        equal(person.wait(), 130, "exit code")
        bed.expect_nothing_left(15)


def scenario_a_users_defaults_reach_hosts(bed):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(f'[runner.ssh]\nconfig_file = "{bed.ssh_config}"\n')
        file.chmod(0o600)
        with_file = {**os.environ, "SORTIE_USER_CONFIG": str(file)}
        for verb in (["exec", "--hosts", "h01", "--no-prefix", "--", "echo", "reached"], ["ssh", "h01", "echo", "reached"]):
            done = run_to_end(SORTIE, *verb, seconds=30, env=with_file)
            equal((done.returncode, done.stdout), (0, "reached\n"), f"{verb} ({done.stderr})")
        file.chmod(0o660)
        done = run_to_end(SORTIE, "ssh", "h01", "true", seconds=30, env=with_file)
        equal(done.returncode, 2, "exit code")
        check("chmod go-w it" in done.stderr, done.stderr)
