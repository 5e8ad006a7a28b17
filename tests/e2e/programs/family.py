"""A rank for the kill matrix: three daemons (own session; double-forked and ignoring HUP; without environment), on
rank 0 a listener on MASTER_PORT that holds the rank's stdout, then "up" and a long sleep."""

import os
import signal
import socket
import time

signal.signal(signal.SIGINT, signal.SIG_DFL)


def silent():
    null = os.open("/dev/null", os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)


def daemon(environment, twice=False):
    if os.fork() > 0:
        return
    os.setsid()
    if twice:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.fork() > 0:
            os._exit(0)
    silent()
    os.execve("/bin/sleep", ["family-daemon", "1000"], environment)


daemon(dict(os.environ))
daemon(dict(os.environ), twice=True)
daemon({})
if os.environ["RANK"] == "0":
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", int(os.environ["MASTER_PORT"])))
    listener.listen()
    if os.fork() == 0:
        time.sleep(1000)
print("up", flush=True)
time.sleep(1000)
