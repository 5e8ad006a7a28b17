"""Rank 0 writes as fast as it can for some seconds and reports how much. The other ranks write a tick every 50 ms for as
long."""

import os
import sys
import time

seconds = float(sys.argv[1])
end = time.monotonic() + seconds
if os.environ["RANK"] == "0":
    block = (b"x" * 63 + b"\n") * 4096
    total = 0
    while time.monotonic() < end:
        view = memoryview(block)
        while view:
            written = os.write(1, view)
            total += written
            view = view[written:]
    os.write(2, f"wrote {total} bytes\n".encode())
else:
    while time.monotonic() < end:
        os.write(1, f"tick {time.monotonic():.3f}\n".encode())
        time.sleep(0.05)
