"""Code that the scenarios share: the bed of the suite, `sortie run` as a child process with a deadline, and queries to
the hosts. A scenario is a function scenario_NAME(bed); it fails by raising an exception. CMakeLists.txt reads the files
and registers each scenario with ctest, so that none can be forgotten."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/testbed.d"))

from machine_clock import communicate, now, wait_for_end  # noqa: E402

import bed as testbed  # noqa: E402
import look  # noqa: E402

BUILD = Path(os.environ.get("SORTIE_BUILD", ROOT / "build/release"))
SORTIE = BUILD / "bin/sortie"
TRAINER = BUILD / "bin/sortie-train"
PROGRAMS = ROOT / "tests/e2e/programs"
HOSTS = ["h01", "h02", "h03", "h04"]
BED_ID = os.environ.get("SORTIE_E2E_BED", "e2e")
PATIENCE = float(os.environ.get("SORTIE_TEST_PATIENCE", 1))  # factor for deadlines; above 1 for programs built with a sanitizer
SANITIZED = PATIENCE > 1  # memory bounds are not checked, because AddressSanitizer keeps freed memory
os.environ["SORTIE_USER_CONFIG"] = "none"  # no scenario depends on the developer's own defaults


class Failure(AssertionError):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def equal(actual, expected, what):
    check(actual == expected, f"{what} is {actual!r}, not {expected!r}")


def wait_until(condition, seconds, what):
    """Returns the first true value of `condition()`. Fails if there is none within `seconds`. `what` names the condition: a text, or a function that
    describes the state at the timeout."""
    deadline = now() + seconds * PATIENCE
    while True:
        last = now() >= deadline  # fails only after a check that began past the deadline
        value = condition()
        if value:
            return value
        check(not last, f"{what() if callable(what) else what}: not within {seconds} s")
        time.sleep(0.03)


def in_time(began, seconds, what):
    """Fails if more than `seconds` have passed since `began` (machine_clock.now())."""
    took = now() - began
    check(took <= seconds * PATIENCE, f"{what}: took {took:.1f} s, not {seconds}")


def run_to_end(*words, seconds=60, text=True, **options):
    """Runs a program and returns a CompletedProcess, as subprocess.run() does. Raises TimeoutExpired if the program has not
    ended within `seconds`. Output is text unless text=False, and is captured unless `stdout` is given. stdin is /dev/null
    unless `stdin` or `input` is given."""
    if "stdout" not in options:
        options["capture_output"] = True
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    argv = [word if isinstance(word, bytes) else str(word) for word in words]
    given, must = options.pop("input", None), options.pop("check", False)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with subprocess.Popen(argv, text=text, **options) as process:
        try:
            out, err = communicate(process, seconds * PATIENCE, given)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(argv, process.returncode, out, err)
    if must:
        done.check_returncode()
    return done


@contextlib.contextmanager
def own_store():
    """Gives a scenario its own store of cordoned hosts, in place of the user's."""
    folder = tempfile.mkdtemp(prefix="sortie-nodes-")
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
        shutil.rmtree(folder, ignore_errors=True)


def environment_of(pid):
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode(errors="replace").split("=", 1) for pair in pairs if b"=" in pair)


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


def start_time(pid):
    """Returns the start time in ticks since boot, or sys.maxsize (later than any other) if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError):
        return sys.maxsize


def command_of(pid):
    """Returns the words of a process's command line; [] if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def executable_of(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


class HostBed:
    """The bed that ctest's fixture has brought up."""

    def __init__(self, bed_id=BED_ID):
        self.bed = testbed.Bed(bed_id)
        self.bed.settings()  # fails with one clear line if the bed is not up
        self.ssh_config = self.bed.ssh_config
        self.shared = self.bed.shared
        self.hosts = [self.bed.host_name(number) for number in range(1, self.bed.count() + 1)]

    def processes(self, host):
        return look.processes(self.bed, host)

    def leftovers(self, hosts=None):
        return [f"{host}: {pid} {command}" for host in hosts or self.hosts for pid, _, _, _, command in self.processes(host)]

    def expect_nothing_left(self, seconds, hosts=None):
        deadline = now() + seconds * PATIENCE
        while True:
            last = now() >= deadline
            if not (left := self.leftovers(hosts)):
                return
            check(not last, f"still there after {seconds} s:\n  " + "\n  ".join(left))
            time.sleep(0.05)

    def link(self, host, state):
        look.set_link(self.bed, host, state)

    def address(self, host):
        return self.bed.address(self.bed.number(host))

    def run_in(self, host, *argv, as_root=False):
        done = run_to_end(*look.enter_argv(self.bed, host, argv, as_root), seconds=30)
        check(done.returncode == 0, f"{host}: {argv}: {done.stderr}")
        return done.stdout

    def ranks(self, run_id=None, attempt=None):
        """Returns {rank: (host, pid on the bastion)} of the rank processes themselves, without their children."""
        found, began = {}, {}
        for host in self.hosts:
            for pid, *_ in self.processes(host):
                variables = environment_of(pid)
                if "SORTIE_RUN_ID" not in variables or "RANK" not in variables:
                    continue
                if run_id and variables["SORTIE_RUN_ID"] != run_id:
                    continue
                if attempt and variables.get("SORTIE_ATTEMPT") != str(attempt):
                    continue
                parent, rank, start = parent_of(pid), int(variables["RANK"]), start_time(pid)
                if not parent or "RANK" in environment_of(parent):
                    continue  # has exited meanwhile, or was started by a rank
                # Orphaned daemons of a rank have the same environment. They started later, but may have lower pids.
                if rank not in found or start < began[rank]:
                    found[rank], began[rank] = (host, pid), start
        return found

    def runner(self, host):
        """Returns the pid of the host's runner. Its keepers have the same executable, but a runner as parent."""
        pids = [pid for pid, *_ in self.processes(host) if executable_of(pid).startswith("runner-")]
        tops = [pid for pid in pids if not executable_of(parent_of(pid)).startswith("runner-")]
        check(len(tops) == 1, f"{host}: {len(tops)} runners, not one")
        return tops[0]

    def clear(self):
        """Resets the bed for a scenario: links are up, no process runs on the hosts, and no scenario's file is left."""
        for host in self.hosts:
            self.link(host, "up")
            for pid, *_ in self.processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.expect_nothing_left(10)
        for host in self.hosts:
            self.run_in(host, "rm", "-f", "started")


class Gates:
    """Files on all hosts for which ranks wait until the scenario creates them, however slow the machine is."""

    def __init__(self, bed):
        self.folder = Path(tempfile.mkdtemp(dir=bed.shared))
        self.folder.chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, name):
        """Returns shell code that waits until open(name)."""
        return f"until test -e {self.folder}/{name}; do sleep 0.05; done"

    def open(self, name):
        (self.folder / name).touch()


class Run:
    """One `sortie run`; as a context manager it never outlives the scenario."""

    options = ()

    def __init__(self, bed, *program, config=None, hosts="h[01-04]", slots=2, settings=(), ssh_config=None,
                 piped=False):
        self.bed = bed
        self.folder = Path(tempfile.mkdtemp(prefix="sortie-e2e-"))
        argv = [SORTIE, "run", *self.options]
        if config:
            argv.append(config)
        if hosts:
            argv += ["--hosts", hosts]
        argv += ["--slots", str(slots), "--ssh-config", ssh_config or bed.ssh_config,
                 "--set", f"logger.log_dir={self.folder}"]
        for key, value in dict(settings).items():
            argv += ["--set", f"{key}={value}"]
        if program:
            argv += ["--", *program]
        self.argv = [str(word) for word in argv]
        self.output_file = open(self.folder / "output", "w+b")
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE if piped else self.output_file,
                                        stderr=subprocess.STDOUT, start_new_session=True,
                                        env={**os.environ, "SORTIE_E2E": "1"})

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if error:
            print(f"--- {' '.join(self.argv)}\n--- exit code {self.process.returncode}, output:\n{self.text()[-6000:]}",
                  file=sys.stderr)
            events = self.folder_of_run() and self.folder_of_run() / "events.jsonl"
            if events and events.exists():
                print("--- events:\n" + events.read_text()[-4000:], file=sys.stderr)
        self.output_file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def text(self):
        return (self.folder / "output").read_text(errors="replace")

    def folder_of_run(self):
        folders = [path for path in (self.folder / "runs").glob("*") if path.is_dir() and not path.is_symlink()]
        return folders[0] if folders else None

    def id(self):
        return self.folder_of_run().name

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds):
        """Returns the exit code as a shell shows it. Fails if the run has not ended within `seconds`."""
        code = wait_for_end(self.process, seconds * PATIENCE)
        if code is None:
            raise Failure(f"sortie still runs after {seconds} s")
        return code if code >= 0 else 128 - code

    def elapsed(self):
        return time.monotonic() - self.started

    def wait_for_ranks(self, count, seconds=40):
        """Waits until `count` ranks run and returns them."""
        def ready():
            check(self.process.poll() is None, "sortie ended before its ranks ran")
            ranks = self.bed.ranks()
            return ranks if len(ranks) == count else None
        return wait_until(ready, seconds, f"{count} ranks running")

    def wait_for_text(self, pattern, seconds=40):
        return wait_until(lambda: re.search(pattern, self.text()), seconds, f"{pattern!r} in the output")

    def expect(self, pattern):
        check(re.search(pattern, self.text(), re.M), f"no {pattern!r} in the output")

    def expect_not(self, pattern):
        check(not re.search(pattern, self.text(), re.M), f"{pattern!r} in the output")

    def log(self, rank, stream="out"):
        return (self.folder_of_run() / "logs" / f"rank-{rank}.{stream}").read_bytes()

    def metrics(self):
        return whole_events(self.folder_of_run() / "metrics.jsonl")


def whole_events(path):
    """Returns the objects of a file with one JSON object per line. Ignores a last line that is still incomplete."""
    text = path.read_text()
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def ssh_config_variant(bed, folder, **changes):
    """Writes the bed's ssh_config with some options replaced, and returns its path. `changes` is {host: {option: value}}."""
    text = []
    for block in bed.ssh_config.read_text().split("\n\n"):
        match = re.match(r"Host (\S+)", block)
        for option, value in changes.get(match.group(1), {}).items() if match else ():
            block, count = re.subn(rf"(?m)^  {option} .*$", f"  {option} {value}", block)
            if not count:
                block += f"\n  {option} {value}"
        text.append(block)
    path = Path(folder) / "ssh_config"
    path.write_text("\n\n".join(text))
    return path
