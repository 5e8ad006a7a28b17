"""The clock for the scenarios' deadlines: it counts only the time in which the machine let this process run.

A virtual machine can be paused, and some kernels (seen with 6.18) let nothing but the polling MPI ranks of several containers run for up to 55 s,
if their cgroups are nested three levels deep. Such a pause says nothing about Sortie. On a machine that is merely busy the clock is slower, too."""

import subprocess
import threading
import time

PAUSE = 0.02
MOST = 0.25  # seconds that one pause counts at most


class MachineClock:
    def __init__(self):
        self.counted, self.gap, self.last = 0.0, 0.0, time.monotonic()
        self.lock = threading.Lock()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            time.sleep(PAUSE)
            self.tick()

    def tick(self):
        with self.lock:
            now = time.monotonic()
            passed = now - self.last
            self.counted += min(passed, MOST)
            self.gap = max(self.gap, passed - PAUSE)
            self.last = now
            return self.counted

    def longest_gap(self):
        """Returns the longest time in which nothing ran since the previous call, in seconds."""
        self.tick()
        gap, self.gap = self.gap, 0.0
        return gap


CLOCK = MachineClock()


def now():
    """Seconds since an arbitrary point. For upper bounds; a lower bound needs time.monotonic()."""
    return CLOCK.tick()


def communicate(process, seconds, given=None):
    """Returns (stdout, stderr) of the process once it has ended. Raises subprocess.TimeoutExpired after `seconds`."""
    deadline = now() + seconds
    while True:
        try:
            return process.communicate(given, timeout=max(0.1, deadline - now()))
        except subprocess.TimeoutExpired:
            given = None  # the first call has accepted it
            if now() >= deadline:
                raise


def wait_for_end(process, seconds):
    """Returns the return code of a subprocess.Popen, or None if it still runs after `seconds`."""
    deadline = now() + seconds
    while process.poll() is None:
        if now() >= deadline:
            return process.poll()
        time.sleep(0.01)
    return process.returncode
