"""A detached run of sortie-train for fault injection: its journal and metrics while it runs, the processes that can be killed, and a
new supervisor in place of a killed one."""

import contextlib
import json
import os
import signal
import subprocess
import time

import machine_clock
from detach import programs_of
from harness import PATIENCE, SORTIE, check, environment_of, equal, run_to_end, wait_until
from training import CONFIG


class Lines:
    """Reads a growing file with one JSON object per line. Skips lines that a full disk has cut."""

    def __init__(self, path):
        self.path, self.offset, self.found = path, 0, []

    def read(self):
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
            data = data[:data.rfind(b"\n") + 1]
            self.offset += len(data)
            for line in data.splitlines():
                with contextlib.suppress(ValueError):
                    self.found.append(json.loads(line))
        return self.found


class TrainingRun:
    """`folder` contains the state folder of the run; `hosts` is as for --hosts. Never outlives the scenario."""

    def __init__(self, bed, folder, hosts, slots, settings):
        self.bed = bed
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
        argv = ["run", CONFIG, "--detach", "--hosts", hosts, "--slots", slots, "--ssh-config", bed.ssh_config]
        for key, value in settings.items():
            argv += ["--set", f"{key}={value}"]
        done = self.sortie(*argv, seconds=120)
        equal(done.returncode, 0, f"exit code of run --detach ({done.stderr[-2000:]})")
        self.id = done.stdout.strip()
        self.path = folder / "sortie/runs" / self.id
        self.journal, self.metrics = Lines(self.path / "events.jsonl"), Lines(self.path / "metrics.jsonl")
        self.losses, self.read_metrics, self.newest = {}, 0, None
        self.adopters = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if self.result() is None:
            # Watchers first, because they would start another supervisor.
            for pid in [*self.watchers(), *programs_of(self.path, "supervisor")]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.bed.clear()  # ends what the hosts hold
        for process in self.adopters:
            if process.poll() is None:
                process.kill()
            process.wait()
        if error:
            for name in ("events.jsonl", "supervisor.log", "adopters.log"):
                if (self.path / name).exists():
                    print(f"--- {name}\n" + (self.path / name).read_text(errors="replace")[-4000:])

    def sortie(self, *argv, seconds=40):
        return run_to_end(SORTIE, *argv, seconds=seconds, env=self.environment)

    def events(self, name, since=0.0, **members):
        return [event for event in self.journal.read() if event["event"] == name and event["time"] >= since
                and all(event.get(key) == value for key, value in members.items())]

    def attempt(self):
        return max((event["attempt"] for event in self.events("attempt")), default=0)

    def told(self, kind, since=0.0):
        """Yields the metrics of a type, newest first, back to `since`."""
        for event in reversed(self.metrics.read()):
            if event["time"] < since:
                return
            if event["type"] == kind:
                yield event

    def note_losses(self):
        """Returns {step: loss}. A repeated step must have had the same loss."""
        for event in self.metrics.read()[self.read_metrics:]:
            if event["type"] != "step":
                continue
            known = self.losses.setdefault(event["step"], event["loss"])
            check(known == event["loss"], f"step {event['step']} had loss {known!r}, and again {event['loss']!r}")
        self.read_metrics = len(self.metrics.found)
        return self.losses

    def result(self):
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.path / "result.json").read_text())["exit_code"]
        return None

    def until(self, condition, seconds, what):
        """Returns the first true value of `condition()`. Fails if the run ends first, or if there is none within `seconds`. Only a check
        that began past the deadline fails, because on a busy machine a check takes seconds."""
        deadline = machine_clock.now() + seconds * PATIENCE
        while True:
            last = machine_clock.now() > deadline
            if value := condition():
                return value
            check(self.result() is None, f"{what}: the run has ended with exit code {self.result()}")
            check(not last, f"{what}: not within {seconds} s")
            time.sleep(0.03)

    def wait_for_step_after(self, since, seconds=60):
        """Waits for a step that was done after `since`. Returns the first one."""
        def stepped():
            return list(self.told("step", since))
        return self.until(stepped, seconds, "a new step")[-1]

    def supervisor(self):
        """Returns the pid of the living supervisor, or 0 if there is none."""
        return (programs_of(self.path, "supervisor") or [0])[-1]

    def watchers(self):
        return programs_of(self.path, "watcher")

    def adopt(self):
        with open(self.path / "adopters.log", "ab") as log:
            self.adopters.append(subprocess.Popen([str(SORTIE), "attach", "--adopt", self.id], env=self.environment, stdout=log,
                                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))

    def ranks(self, count):
        """Waits until all ranks of the newest attempt run. Returns {rank: (host, pid)}."""
        def there():
            number = str(self.attempt())
            found = self.bed.ranks(self.id)
            right = all(environment_of(pid).get("SORTIE_ATTEMPT") == number for _, pid in found.values())
            return found if right and len(found) == count else None
        return self.until(there, 60, f"{count} ranks")

    def stop(self, seconds):
        """Ends the run as a user does; training saves at the end of its step. Returns the exit code."""
        done = self.sortie("stop", self.id, seconds=seconds)
        equal(done.returncode, 0, f"exit code of stop ({done.stderr})")
        return wait_until(lambda: self.result(), seconds, "result.json")


def last_checkpoint(folder):
    """Returns the step of the newest checkpoint."""
    return max(int(path.name.rsplit("-", 1)[1]) for path in folder.glob("step-*"))


def now():
    return time.time()
