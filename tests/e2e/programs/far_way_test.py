#!/usr/bin/python3
"""Checks far_way.py on the loopback device: delay, order, loss, stalls, blocked protocols. Fails with an error."""

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


class Far:
    def __init__(self, *arguments):
        program = Path(__file__).with_name("far_way.py")
        self.process = subprocess.Popen([sys.executable, str(program), *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.ports = [int(word) for word in self.process.stdout.readline().split()[1:]]

    def order(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n", text

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(10) == 0


def echo_tcp():
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            link, _ = server.accept()
            threading.Thread(target=echo, args=(link,), daemon=True).start()

    def echo(link):
        try:
            while data := link.recv(1 << 16):
                link.sendall(data)
            link.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def echo_udp():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    server.bind(("127.0.0.1", 0))

    def serve():
        while True:
            server.sendto(*server.recvfrom(2048))

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def round_trip(link):
    begun = time.monotonic()
    link.sendall(b"x")
    assert link.recv(1) == b"x"
    return time.monotonic() - begun


def tcp(far, port):
    link = socket.create_connection(("127.0.0.1", port), timeout=20)
    assert round_trip(link) >= 0.06, "both ways are 30 ms"
    far.order("delay_ms 1")
    far.order("loss 1")
    assert round_trip(link) >= 0.4, "each way has lost it once"
    far.order("loss 0.02")
    sent = bytes(range(256)) * 8192
    threading.Thread(target=link.sendall, args=(sent,), daemon=True).start()
    got = b""
    while len(got) < len(sent):
        got += link.recv(1 << 16)
    assert got == sent, "other bytes, or in another order"
    far.order("loss 0")
    far.order("still")
    link.sendall(b"y")
    link.settimeout(0.3)
    try:
        raise AssertionError(f"{link.recv(1)} has come although nothing moves")
    except TimeoutError:
        pass
    far.order("go")
    link.settimeout(20)
    assert link.recv(1) == b"y"
    link.shutdown(socket.SHUT_WR)
    assert link.recv(1) == b"", "the end of the stream comes through"
    link = socket.create_connection(("127.0.0.1", port), timeout=20)
    round_trip(link)
    far.order("tcp off")
    try:
        assert link.recv(1) == b""
    except ConnectionResetError:
        pass
    refused = socket.create_connection(("127.0.0.1", port), timeout=20)
    try:
        assert refused.recv(1) == b""
    except ConnectionResetError:
        pass


CALLS = iter(range(1000))


def count_udp(link, count):
    """Sends `count` datagrams and returns the numbers of those that come back. Reads between sends, a few at a time, because the queues of
    processes that get no processor time fill up soon. The first byte identifies late datagrams of an earlier call."""
    call, numbers = next(CALLS), []

    def read(seconds):
        link.settimeout(seconds)
        try:
            while len(numbers) < count:
                bytes_read = link.recv(2048)
                if bytes_read[0] == call:
                    numbers.append(int.from_bytes(bytes_read[1:], "big"))
        except TimeoutError:
            pass

    for i in range(count):
        link.send(bytes([call]) + i.to_bytes(4, "big"))
        if i % 20 == 19:
            read(0.02)
    read(2)
    return numbers


def udp(far, port):
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.connect(("127.0.0.1", port))
    far.order("delay_ms 0")
    assert sorted(count_udp(link, 20)) == list(range(20)), "nothing is lost"
    far.order("loss 0.2")
    come = len(count_udp(link, 500))
    assert 200 < come < 440, f"{come} of 500 came back over ways that lose a fifth each"
    far.order("loss 0")
    far.order("reorder 0.3")
    numbers = count_udp(link, 200)
    assert numbers != sorted(numbers), "in order"
    far.order("udp off")
    assert not count_udp(link, 5), "blocked"


far_way = Far(f"tcp:0:127.0.0.1:{echo_tcp()}", f"udp:0:127.0.0.1:{echo_udp()}", "--delay-ms", "30")
tcp(far_way, far_way.ports[0])
udp(far_way, far_way.ports[1])
far_way.end()
