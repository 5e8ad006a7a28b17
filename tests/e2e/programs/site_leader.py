#!/usr/bin/python3 -S
"""site_leader.py FOLDER ROUNDS STEP_SECONDS: the protocol of a site's leader (common/training/outer.h), with a hash in
place of weights, and files in FOLDER, which all hosts share, in place of links. For each round that it has applied it
prints a line and writes a checkpoint. It ends after ROUNDS, or after a round in which a member saw FOLDER/end."""

import hashlib
import json
import os
import select
import socket
import sys
import time
from pathlib import Path

FOLDER, ROUNDS, STEP = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
SITE = os.environ["SORTIE_SITE"]
EXCHANGE_LIMIT = 8.0  # seconds for which another member may be silent


class Refused(Exception):
    pass


class Supervisor:
    """Sends requests with increasing numbers, each repeated until it is answered."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["SORTIE_SOCKET"])
        self.number, self.pending, self.aborted = 0, b"", set()
        self.send({"type": "listen"})

    def send(self, what):
        self.socket.sendall(json.dumps(what).encode() + b"\n")

    def lines(self, seconds):
        if select.select([self.socket], [], [], seconds)[0]:
            came = self.socket.recv(65536)
            if not came:
                sys.exit("the runner is gone")
            self.pending += came
        *whole, self.pending = self.pending.split(b"\n")
        for line in whole:
            answer = json.loads(line)
            if answer["do"] == "abort":
                self.aborted.add(answer["epoch"])
            else:
                yield answer

    def tell(self, **question):
        self.number += 1
        self.send({"type": "outer", "number": self.number, **question})

    def ask(self, **question):
        self.number += 1
        while True:
            self.send({"type": "outer", "number": self.number, **question})
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                for answer in self.lines(max(0, deadline - time.monotonic())):
                    if answer["number"] != self.number:
                        continue
                    if answer["do"] == "refused":
                        raise Refused(answer.get("reason", ""))
                    return answer


class Site:
    def __init__(self):
        self.asks = Supervisor()
        self.checkpoint = FOLDER / f"checkpoint-{SITE}"
        self.round, self.weights, self.position, self.last = 0, "0" * 16, 0, False
        if self.checkpoint.exists():
            self.round, self.weights, self.position = json.loads(self.checkpoint.read_text())

    def save(self):
        state = json.dumps([self.round, self.weights, self.position])
        for path in (self.checkpoint, FOLDER / f"state-{SITE}-{self.round}"):  # the latter is for sites that join
            fresh = path.with_name(path.name + ".new")
            fresh.write_text(state)
            fresh.rename(path)

    def join(self):
        joined = self.asks.ask(do="join", site=SITE, part=0, parts=1, round=self.round, hash=self.weights,
                               fresh=self.round == 0, position=self.position, elements=1, address="", steps_in_vain=0)
        for donor in joined["donors"]:
            state = FOLDER / f"state-{donor}-{joined['round']}"
            if state.exists():
                self.round, self.weights, _ = json.loads(state.read_text())
                print(f"weights of round {self.round} from {donor}", flush=True)
                break

    def exchange(self, order):
        """Returns (hash of the mean, ""), or (None, a missing member)."""
        names = [member["site"] for member in order["members"]]
        change = FOLDER / f"change-{order['epoch']}-{SITE}"
        fresh = change.with_name(change.name + ".new")
        fresh.write_text("last" if (FOLDER / "end").exists() else "")
        fresh.rename(change)
        deadline = time.monotonic() + EXCHANGE_LIMIT
        missing = names
        while missing and time.monotonic() < deadline and order["epoch"] not in self.asks.aborted:
            missing = [name for name in missing if not (FOLDER / f"change-{order['epoch']}-{name}").exists()]
            list(self.asks.lines(0.02))
        if missing:
            return None, missing[0]
        return hashlib.sha256(f"{order['round']} {names} {order['epoch']}".encode()).hexdigest()[:16], ""

    def one_round(self):
        work = self.asks.ask(do="next", round=self.round + 1, step_seconds=STEP)
        with open(FOLDER / "samples", "a") as samples:
            samples.write(f"{work['first_sample']} {work['first_sample'] + work['steps'] * work['batch']} {SITE}\n")
        time.sleep(work["steps"] * STEP)
        while True:
            order = self.asks.ask(do="ready", round=self.round + 1, fragment=0, tokens=work["steps"], abstains=False,
                                  reason="")
            mean, missing = self.exchange(order)
            decision = self.asks.ask(do="vote", round=order["round"], fragment=0, epoch=order["epoch"],
                                     done=mean is not None, hash=mean or "0" * 16,
                                     reason="" if mean else "silent for too long", suspect=missing)
            if decision["commit"]:
                break
        self.weights = hashlib.sha256((self.weights + mean).encode()).hexdigest()[:16]
        self.round += 1
        self.position = max(self.position, work["first_sample"] + work["steps"] * work["batch"])
        changes = [FOLDER / f"change-{order['epoch']}-{member['site']}" for member in order["members"]]
        self.last = any(change.read_text() == "last" for change in changes)
        self.save()
        print(f"round {self.round} epoch {order['epoch']} weights {self.weights}", flush=True)


def main():
    site = Site()
    site.save()
    joined = False
    while site.round < ROUNDS and not site.last:
        try:
            if not joined:
                site.join()
                joined = True
            site.one_round()
        except Refused as refused:
            print(f"refused: {refused}", flush=True)
            joined = False
    site.asks.tell(do="leave", reason="all rounds are done")
    time.sleep(0.3)


main()
