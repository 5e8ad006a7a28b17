"""A rank that starts daemons in every way that escapes a process group: setsid, double fork, ignored signals, no
environment. Then it exits with the given code, or waits forever ("wait")."""

import os
import signal
import sys
import time


def daemon(number):
    if os.fork() > 0:
        return
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    os.execve("/bin/sleep", [f"daemon-{number}", "1000"], {} if number % 2 else dict(os.environ))


for index in range(6):
    daemon(index)
if sys.argv[1] == "wait":
    time.sleep(0.2)
    print(f"rank {os.environ['RANK']} has its daemons", flush=True)
    time.sleep(1000)
sys.exit(int(sys.argv[1]))
