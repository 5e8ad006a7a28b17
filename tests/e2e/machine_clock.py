"""The clock of the scenarios' deadlines: it counts the time in which the machine let this process run.

Where MPI ranks of several containers share two cores, some kernels (seen with 6.18) let nothing else run for up to 40 s: nothing is known of
Sortie from such a time. On a machine that is merely busy the clock goes slower, too."""

import subprocess
import threading
import time

PAUSE = 0.02
MOST = 0.25  # seconds that one pause may count


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
        """Of the times in which nothing ran, since it was asked last."""
        self.tick()
        gap, self.gap = self.gap, 0.0
        return gap


CLOCK = MachineClock()


def now():
    """Seconds, of which only differences mean something. Upper bounds are judged by it; a lower bound needs time.monotonic()."""
    return CLOCK.tick()


def communicate(process, seconds, given=None):
    """What it has written, (stdout, stderr), when it has ended; subprocess.TimeoutExpired where that takes longer."""
    deadline = now() + seconds
    while True:
        try:
            return process.communicate(given, timeout=max(0.1, deadline - now()))
        except subprocess.TimeoutExpired:
            given = None  # it is under way
            if now() >= deadline:
                raise


def wait_for_end(process, seconds):
    """The return code of a subprocess.Popen; None where it still runs after `seconds`."""
    deadline = now() + seconds
    while process.poll() is None:
        if now() >= deadline:
            return process.poll()
        time.sleep(0.01)
    return process.returncode
