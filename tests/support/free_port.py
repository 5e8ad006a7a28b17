"""A port for ranks that are told it before they listen."""
import random
import socket
import sys


def free_port():
    """Returns a port below the range from which the kernel assigns ports to connections, which concurrent tests make all the time."""
    for _ in range(100):
        port = random.randrange(10000, 20000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return str(port)
            except OSError:
                continue
    sys.exit("no free port")
