"""Disturbances of healthy hosts: processes that occupy the cores, a disk that other programs write to, data that has left the page
cache, links that are slow or down for a moment, processes that pause for a second or two, and lines in the kernel's log."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import time

from harness import look, parent_of

# Defaults for all limits: with these, as users have them, noise must not raise an alarm.
HEALTHY = {"recovery.max_restarts": 5, "recovery.backoff": "0s"}
SPIN = "while True: pass"
WRITE = """
import os, sys
while True:
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
"""
# None of these lines explains a failure, or requires an action now.
KERNEL_LINES = ("usb 1-1: new high-speed USB device number 3 using xhci_hcd", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0 (channel:0 slot:0)",
                "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception: ESR 0x404490=0x80000001", "perf: interrupt took too long (2513 > 2500)")


class Noise:
    """Makes disturbances at random; as a context manager none of them outlives the run."""

    def __init__(self, run, chance, folder, logs):
        self.run, self.bed, self.chance, self.folder, self.logs = run, run.bed, chance, folder, logs
        self.ranks = {}
        self.made = collections.Counter()
        self.later = []  # (time, function that ends a disturbance)
        self.due = 0.0

    def __enter__(self):
        self.ranks = self.run.ranks(2 * len(self.bed.hosts))
        return self

    def __exit__(self, *_error):
        for _, end in self.later:
            end()

    def text(self):
        return ", ".join(f"{name} {count}" for name, count in sorted(self.made.items()))

    def make_some(self):
        """Makes another disturbance when it is due, and ends those that are over. Always returns False."""
        now = time.monotonic()
        for entry in [entry for entry in self.later if entry[0] <= now]:
            self.later.remove(entry)
            entry[1]()
        if now >= self.due:
            self.due = now + self.chance.uniform(2, 8)
            kind = self.chance.choice((self.neighbour, self.writer, self.cold_data, self.slow_link, self.short_cut, self.pause, self.kernel_line))
            self.made[kind.__name__.replace("_", " ")] += 1
            kind(now)
        time.sleep(0.05)
        return False

    def program(self, now, *words):
        process = subprocess.Popen([sys.executable, "-ISc", *words], stdin=subprocess.DEVNULL)
        def end():
            process.kill()
            process.wait()
        self.later.append((now + self.chance.uniform(5, 20), end))

    def neighbour(self, now):
        self.program(now, SPIN)

    def writer(self, now):
        self.program(now, WRITE, str(self.folder / "neighbour"))

    def cold_data(self, _now):
        for path in self.bed.shared.glob("tokens.*"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def slow_link(self, now):
        host = self.chance.choice(self.bed.hosts)
        look.shape(self.bed.bed, host, "50mbit")
        self.later.append((now + self.chance.uniform(3, 10), lambda: look.shape(self.bed.bed, host, "off")))

    def short_cut(self, now):
        host = self.chance.choice(self.bed.hosts)
        self.bed.link(host, "down")
        self.later.append((now + self.chance.uniform(0.3, 2), lambda: self.bed.link(host, "up")))

    def pause(self, now):
        """Pauses a rank, its runner, or the supervisor."""
        _, pid = self.chance.choice([self.ranks[rank] for rank in sorted(self.ranks)])
        pid = self.chance.choice((pid, parent_of(parent_of(pid)), self.run.supervisor()))
        def go_on():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if pid > 1:
            os.kill(pid, signal.SIGSTOP)
            self.later.append((now + self.chance.uniform(0.3, 2), go_on))

    def kernel_line(self, _now):
        self.chance.choice(self.logs).say(self.chance.choice(KERNEL_LINES))
