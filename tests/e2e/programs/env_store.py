"""The rendezvous of a script for torchrun, from its environment alone: rank 0 opens a store at MASTER_ADDR:MASTER_PORT,
all ranks register there, with retries, and leave once all have registered. `env_store.py [FILE]` keeps the store open
until FILE exists. Prints the environment as one JSON line."""

import json
import os
import socket
import sys
import threading
import time

# The variables that torch.distributed.run documents for its workers.
NAMES = ["LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
         "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"]
ENV = {name: os.environ[name] for name in NAMES}
RANK, SIZE = int(ENV["RANK"]), int(ENV["WORLD_SIZE"])
PLACE = (ENV["MASTER_ADDR"], int(ENV["MASTER_PORT"]))


def serve(listener):
    clients = [listener.accept()[0] for _ in range(SIZE)]
    ranks = sorted(int(client.makefile().readline()) for client in clients)
    for client in clients:
        client.sendall((" ".join(map(str, ranks)) + " " + ENV["TORCHELASTIC_RUN_ID"] + "\n").encode())
        client.close()


def main():
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False", "a store by somebody else than rank 0"
    if RANK == 0:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", PLACE[1]))
        listener.listen(SIZE)
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
    deadline = time.monotonic() + 20
    while True:
        try:
            store = socket.create_connection(PLACE, timeout=30)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    store.sendall(f"{RANK}\n".encode())
    answer = store.makefile().readline().split()
    assert answer == [*map(str, range(SIZE)), ENV["TORCHELASTIC_RUN_ID"]], f"another job's store: {answer}"
    if RANK == 0:
        server.join(20)
    print(json.dumps(ENV), flush=True)


main()
