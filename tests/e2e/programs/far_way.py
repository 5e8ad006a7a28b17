"""A path to another site in user space, for kernels without netem: ports of this host that forward to another one, with
delay, loss, reordering and blocked protocols. `far_way.py tcp:PORT:HOST:PORT udp:PORT:HOST:PORT ... [--delay-ms 40] [--loss 0.01]`
prints `ready` and the ports (0 = any free one). Commands on stdin change it while it runs, each answered by `ok`: `delay_ms 80`,
`loss 0.1`, `reorder 0.2`, `jitter_ms 5`, `udp off | on`, `tcp off | on`, `cut`, `still` and `go`. It exits when stdin closes.

Loss of TCP has the effect of a retransmission: lost data, and all data after it, arrives one stall later. Lost datagrams are
dropped; a reordered one arrives after the next. `off` drops datagrams and closes connections at once, `still` forwards
nothing and closes nothing until `go`, `cut` resets all connections."""

import argparse
import asyncio
import random
import socket
import struct
import sys

AHEAD = 16 << 20  # limit of the bytes in transit per direction of a connection, enough for 1 Gbit/s x 100 ms
STALL_S = 0.2  # TCP's shortest retransmission timeout


class Way:
    """The current properties of the path, and its connections."""

    def __init__(self, options):
        self.delay_ms, self.jitter_ms, self.loss, self.reorder = (options.delay_ms, options.jitter_ms, options.loss,
                                                                  options.reorder)
        self.open = {"tcp": True, "udp": True}
        self.chance = random.Random(options.seed)
        self.moves = asyncio.Event()
        self.moves.set()
        self.connected = set()

    def delay(self):
        return (self.delay_ms + self.jitter_ms * self.chance.random()) / 1000

    def cut(self):
        for writer in list(self.connected):
            # A reset, not an orderly close: as after a cut, data in transit does not arrive.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def order(self, words):
        match words:
            case ["delay_ms" | "jitter_ms" | "loss" | "reorder" as name, value]:
                setattr(self, name, float(value))
            case ["tcp" | "udp" as kind, "on" | "off" as state]:
                self.open[kind] = state == "on"
                if (kind, state) == ("tcp", "off"):
                    self.cut()
            case ["cut"]:
                self.cut()
            case ["still"]:
                self.moves.clear()
            case ["go"]:
                self.moves.set()
            case _:
                raise ValueError(f"no order: {' '.join(words)}")


async def one_way(way, reader, writer):
    """Forwards bytes in order, each after the delay, and then the end of the stream."""
    loop = asyncio.get_running_loop()
    queue, room = asyncio.Queue(), asyncio.Condition()
    held = 0

    async def give():
        nonlocal held
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - loop.time()))
            await way.moves.wait()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            async with room:
                held -= len(data)
                room.notify()

    async def take():
        nonlocal held
        last = 0.0
        while True:
            data = await reader.read(64 << 10)
            stall = STALL_S + way.delay() if data and way.chance.random() < way.loss else 0
            last = max(last, loop.time() + way.delay() + stall)
            queue.put_nowait((last, data))
            if not data:
                return
            async with room:
                held += len(data)
                await room.wait_for(lambda: held < AHEAD)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(give())
        tasks.create_task(take())


async def connection(way, host, port, reader, writer):
    way.connected.add(writer)
    other = None
    try:
        if not way.open["tcp"]:
            return
        await asyncio.sleep(2 * way.delay())  # SYN and its answer
        other_reader, other = await asyncio.open_connection(host, port)
        way.connected.add(other)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one_way(way, reader, other))
            tasks.create_task(one_way(way, other_reader, writer))
    except* OSError:
        pass  # one end is gone, and so is the connection
    finally:
        for end in (writer, other):
            if end:
                way.connected.discard(end)
                end.transport.abort()


class Datagrams(asyncio.DatagramProtocol):
    """One end of a path for datagrams. `give` gets what is to leave at the other end."""

    def __init__(self, way, give):
        self.way, self.give, self.kept, self.waiting = way, give, None, []

    def connection_made(self, transport):
        self.transport = transport
        for data in self.waiting:
            transport.sendto(data)

    def datagram_received(self, data, address):
        way = self.way
        if not way.open["udp"] or not way.moves.is_set() or way.chance.random() < way.loss:
            return
        if self.kept is None and way.chance.random() < way.reorder:
            self.kept = (data, address)
            return
        for one in ((data, address), self.kept):
            if one:
                asyncio.get_running_loop().call_later(way.delay(), self.give, *one)
        self.kept = None

    def error_received(self, error):
        pass  # no program listens there: the datagram is lost

    def send(self, data):
        if hasattr(self, "transport"):
            self.transport.sendto(data)
        else:
            self.waiting.append(data)


async def datagrams(way, port, host, to):
    """Forwards datagrams from `port` to host:to. Each source has its own socket there, as behind NAT. Returns the port."""
    loop = asyncio.get_running_loop()
    ends = {}

    def give(data, source):
        if source not in ends:
            ends[source] = Datagrams(way, lambda answer, _: here.transport.sendto(answer, source))
            ends[source].made = loop.create_task(
                loop.create_datagram_endpoint(lambda: ends[source], remote_addr=(host, to)))
        ends[source].send(data)

    here = Datagrams(way, give)
    transport, _ = await loop.create_datagram_endpoint(lambda: here, local_addr=("0.0.0.0", port))
    return transport.get_extra_info("sockname")[1]


async def main(options):
    way = Way(options)
    ports, servers = [], []
    for route in options.route:
        kind, port, host, to = route.split(":")
        if kind == "udp":
            ports.append(await datagrams(way, int(port), host, int(to)))
            continue
        server = await asyncio.start_server(lambda r, w, host=host, to=int(to): connection(way, host, to, r, w),
                                            "0.0.0.0", int(port))
        servers.append(server)
        ports.append(server.sockets[0].getsockname()[1])
    print("ready", *ports, flush=True)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        way.order(line.decode().split())
        print("ok", flush=True)
    way.cut()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("route", nargs="+", metavar="tcp|udp:PORT:HOST:PORT")
    for name in ("delay-ms", "jitter-ms", "loss", "reorder"):
        parser.add_argument("--" + name, type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
