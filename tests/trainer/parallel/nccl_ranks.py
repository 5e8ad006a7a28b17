#!/usr/bin/env python3
"""nccl_ranks.py SORTIE_TRAIN MODULE: tests ranks as processes with an emulated GPU each, without a launcher: right values, and how
the others exit when one is killed, is late, or its NCCL fails."""
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from free_port import free_port

SECONDS = 90  # enough on a busy machine; a deadlock never ends
TRAINER, MODULE = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])


def start(ranks, *arguments, **environment):
    port = free_port()
    arguments = arguments if "--seconds" in arguments else ("--seconds", "0", *arguments)
    return [subprocess.Popen([TRAINER, "bench", "comm", "--json", *arguments], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                                  "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                                  "SORTIE_CUDA_MODULE": MODULE, **environment})
            for rank in range(ranks)]


def finish(processes):
    try:
        return [(process.wait(SECONDS), *process.communicate()) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        sys.exit(f"ranks still ran after {SECONDS} s: {[process.communicate()[1][-2000:] for process in processes]}")


GPUS = ("--device", "cuda", "--backend", "nccl")


def check_values():
    for dtype in ("f32", "bf16"):
        ended = finish(start(3, *GPUS, "--from", "4", "--to", "64KB", "--factor", "32", "--dtype", dtype))
        if any(code for code, _, _ in ended):
            sys.exit(f"{dtype}: {ended}")
        report = json.loads(ended[0][1])
        if not report["library"].startswith("NCCL ") or len({row["operation"] for row in report["rows"]}) != 6:
            sys.exit(f"another report: {report}")
        wrong = [row for row in report["rows"] if row["wrong"]]
        if wrong:
            sys.exit(f"wrong values: {wrong}")


def check_killed():
    ended = finish(start(3, *GPUS, "--op", "all_reduce", "--to", "1GB", "--seconds", "3600", "--iterations", "1000000",
                         SORTIE_EMULATED_NCCL_FAULT="kill:1:20"))
    if ended[1][0] != -signal.SIGKILL:
        sys.exit(f"rank 1 was not killed: {ended[1]}")
    for rank in (0, 2):
        code, _, err = ended[rank]
        if code == 0 or "communication between ranks broke" not in err:
            sys.exit(f"rank {rank} after the kill: {ended[rank]}")
    # A rank that learns of it late may first hear that the other one has given up.
    if not any("rank 1" in ended[rank][2] for rank in (0, 2)):
        sys.exit(f"nobody names rank 1: {ended}")


def check_stopped():
    """Without a launcher the ranks can not ask each other. nccl_missing_rank.py does this with one."""
    ranks = start(3, *GPUS, "--op", "all_reduce", "--to", "64KB", SORTIE_COMM_TIMEOUT="6", SORTIE_EMULATED_NCCL_FAULT="stop:1:4")
    ended = finish([ranks[0], ranks[2]])
    ranks[1].kill()
    ranks[1].communicate()
    if any(code == 0 for code, _, _ in ended) or \
            not any("no collective between GPUs made progress for 6 s: see what happened on the other ranks, or set SORTIE_COMM_TIMEOUT to "
                    "more seconds" in err for _, _, err in ended):
        sys.exit(f"a rank that is stopped: {ended}")


def check_faults():
    ended = finish(start(2, *GPUS, "--op", "all_reduce", "--to", "64KB", SORTIE_EMULATED_NCCL_FAULT="error:1:3"))
    # Found by the rank's watch, or by the next collective that it begins.
    if ended[1][0] == 0 or any(part not in ended[1][2] for part in ("NCCL 2.28.9: ", "remote process exited")):
        sys.exit(f"an error of NCCL: {ended}")
    ended = finish(start(2, *GPUS, "--op", "all_reduce", "--to", "64KB", SORTIE_COMM_TIMEOUT="10",
                         SORTIE_EMULATED_NCCL_FAULT="hang:0:2"))
    # The rank that gives up first ends the wait of the other.
    if any(code == 0 for code, _, _ in ended) or \
            not any("no collective between GPUs made progress for 10 s" in err for _, _, err in ended):
        sys.exit(f"a collective that goes nowhere: {ended}")
    check_stopped()
    ended = finish(start(1, *GPUS, WORLD_SIZE="2", SORTIE_COMM_TIMEOUT="1"))
    if ended[0][0] == 0 or "rank 1 did not connect to rank 0 at 127.0.0.1" not in ended[0][2]:
        sys.exit(f"a rank that does not come: {ended}")
    ended = finish(start(2, "--backend", "nccl"))
    if any("nccl is for ranks with a GPU each" not in err for _, _, err in ended):
        sys.exit(f"nccl on CPUs: {ended}")


check_values()
check_killed()
check_faults()
print("ok")
