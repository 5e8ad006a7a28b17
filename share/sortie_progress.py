"""Tells Sortie where a program is: for `sortie status`, and so that a hang is found and its stacks are kept.

    import sortie_progress
    sortie_progress.step(1)              # at the start of each step, counted from 1
    sortie_progress.section("evaluate")  # where the step is; not needed

Without section() a step may take ten times watchdog.hang_minimum; with "data", "forward", "backward", "reduce" (waits for
other ranks) and "optimizer" the limits are closer. Outside of `sortie run` all of it does nothing. No call waits.
"""
import faulthandler
import json
import os
import signal
import socket
import time

SECTIONS = ("start", "step", "data", "forward", "backward", "reduce", "optimizer", "evaluate", "save", "done")
_path = os.environ.get("SORTIE_SOCKET")
_now = {"type": "progress", "step": 0, "section": "start"}
_link, _told = None, 0.0


def step(number):
    _tell(number, "step", often=_now["section"] == "step")


def section(name):
    if name not in SECTIONS:
        raise ValueError(f"sortie_progress.section: {name!r} is none of {', '.join(SECTIONS)}")
    _tell(_now["step"], name)


def _tell(number, name, often=False):
    global _link, _told
    _now.update(step=int(number), section=name)
    if not _path or (often and time.monotonic() - _told < 0.02):
        return
    try:
        if _link is None:
            _link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            _link.connect(_path)
            _link.setblocking(False)
        _link.send((json.dumps(_now) + "\n").encode())
        _told = time.monotonic()
    except OSError:
        pass  # the runner is busy, or gone: this program has better things to do


if _path:
    _tell(0, "start")
    try:
        faulthandler.register(signal.SIGQUIT, file=open(f"{_path}.stacks-{os.getpid()}", "a"), all_threads=True)
    except OSError:
        pass  # another user in a container: the runner has the kernel's view alone
