"""Output of ranks: nothing is lost, no rank waits for another one that writes too much, and no output takes over the terminal."""

import os
import re
import sys
import threading
import time
from pathlib import Path

from harness import PROGRAMS, SANITIZED, Run, check, equal, wait_until

sys.path.insert(0, str(PROGRAMS))
import any_bytes  # noqa: E402

LAUNCHER_BOUND_MIB = 64  # launcher/README.md: 15 with the console, and per host an output window of 4


class SlowTerminal:
    """Reads slowly until `slow` is cleared, so that the live view has to drop lines."""

    def __init__(self, stream):
        self.shown, self.slow = bytearray(), True
        self.thread = threading.Thread(target=self.read, args=(stream,), daemon=True)
        self.thread.start()

    def read(self, stream):
        while piece := stream.read1(16384):
            self.shown.extend(piece)
            if self.slow:
                time.sleep(0.15)


def scenario_flood(bed):
    seconds = 5
    with Run(bed, "/usr/bin/python3", "-S", PROGRAMS / "flood.py", str(seconds), hosts="h01,h02", slots=1,
             settings={"runner.mpi": "off"}, piped=True) as run:
        terminal = SlowTerminal(run.process.stdout)
        ticks = wait_until(lambda: run.folder_of_run() and (run.folder_of_run() / "logs/rank-1.out"), 20, "a run")
        late, memory, taken, looked = 0.0, 0, 0, 0.0

        def first_tick():
            nonlocal looked
            at = time.monotonic()
            if ticks.exists():
                return True
            looked = at
            return False
        wait_until(first_tick, 30, "the first tick")
        while run.process.poll() is None and run.elapsed() < 60:
            now = time.monotonic()
            text = ticks.read_text()
            lines = text[:text.rfind("\n") + 1].splitlines()
            # A new tick was not in the file at the previous look: it is late by at least the time from the tick to that look.
            late = max([late] + [looked - float(line.split()[1]) for line in lines[taken:]])
            taken, looked = len(lines), now
            status = Path(f"/proc/{run.process.pid}/status")
            try:
                memory = max(memory, int(re.search(r"VmHWM:\s+(\d+)", status.read_text()).group(1)))
            except (OSError, AttributeError):
                pass
            terminal.slow = not (run.folder_of_run() / "logs/rank-0.err").exists()  # until the flood is over
            time.sleep(0.02)
        equal(run.wait(20), 0, "exit code")
        terminal.thread.join(10)
        total = int(re.search(rb"wrote (\d+) bytes", run.log(0, "err")).group(1))
        log = run.folder_of_run() / "logs/rank-0.out"
        print(f"{total / 1e6 / seconds:.0f} MB/s, ticks at most {late * 1000:.0f} ms late, launcher {memory / 1024:.1f} MiB")
        equal(os.path.getsize(log), total, "bytes in the log of the rank that floods")
        with open(log, "rb") as file:
            check(all(line == b"x" * 63 + b"\n" for line in file), "a line of the flood is broken")
        check(total > 4e6, f"a flood of {total} bytes shows nothing")
        # Queued after the flood, ticks would be late by its whole duration. The bounds allow for a machine that is busy or pauses.
        check(taken > seconds * 20 * 0.2, f"only {taken} ticks: the ticking rank was held up")
        check(late < seconds * 0.8, f"a tick was {late:.2f} s late")
        check(SANITIZED or memory < LAUNCHER_BOUND_MIB * 1024, f"the launcher grew to {memory / 1024:.0f} MiB")
        check(b"lines of output were not shown; `sortie logs " in terminal.shown, "no word of dropped lines")
        bed.expect_nothing_left(10)


def scenario_any_bytes(bed):
    with Run(bed, "/usr/bin/python3", "-S", PROGRAMS / "any_bytes.py", hosts="h01,h03", slots=2,
             settings={"runner.mpi": "off"}) as run:
        equal(run.wait(30), 0, "exit code")
        for rank in range(4):
            check(run.log(rank) == any_bytes.BYTES, f"the log of rank {rank} is not what it wrote")
        shown = (run.folder / "output").read_bytes()
        check(not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", shown), "control bytes reached the terminal")
        check(b"\xc2\x9b" not in shown and b"\x9b3" not in shown, "a C1 control reached the terminal")
        check("\u202e" not in shown.decode(), "an override of the text direction reached the terminal")
        for rank in range(4):
            run.expect(rf"^\[{rank} h0[13]\] \^\[\[2J")
            run.expect(rf"^\[{rank} h0[13]\] 100 %$")
            run.expect(rf"^\[{rank} h0[13]\] no newline$")
