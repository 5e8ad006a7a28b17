"""Writes bytes that are hard to carry: every byte value, progress lines, a line of 400 kB, invalid UTF-8, terminal escapes, and
no newline at the end. `any_bytes.BYTES` is what must arrive."""

import os

BYTES = (bytes(range(256)) + b"\n" + b"".join(b"\r%3d %%" % i for i in range(101)) + b"\n" + b"m" * 400_000 + b"\n"
         + b"\xff\xfe\xc0\xaf\xe2\x82\n" + b"\x1b[2J\x1b]0;mine\x07\xc2\x9b31m\x9b31m\n"
         + "\u202eright to left\u2066\n".encode() + b"no newline")

if __name__ == "__main__":
    view = memoryview(BYTES)
    while view:
        view = view[os.write(1, view):]
