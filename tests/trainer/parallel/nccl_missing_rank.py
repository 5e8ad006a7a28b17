#!/usr/bin/env python3
"""nccl_missing_rank.py SORTIE SORTIE_TRAIN MODULE: ranks of `sortie run` with an emulated GPU each, one of which is stopped or ends in the
middle of a collective. The others must name it with its host, and must say that all have come if none is missing. They ask each other through
the launcher."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SECONDS = 90 * float(os.environ.get("SORTIE_TEST_PATIENCE", 1))  # enough on a busy machine
SORTIE, TRAINER, MODULE = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:4])
RANKS, LIMIT = 4, 8  # seconds; longer than live ranks may stall on a busy machine


def run(folder, fault):
    """Returns the exit code and the output of a job whose rank has the fault (tests/support/cuda/include/nccl.h)."""
    settings = {"runner.hosts": f'["localhost slots={RANKS}"]', "runner.mpi": "off", "runner.grace": "2s", "logger.log_dir": f"{folder}/state",
                "runner.env.SORTIE_CUDA_MODULE": MODULE, "runner.env.SORTIE_COMM_TIMEOUT": f'"{LIMIT}"'}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    job = subprocess.Popen([SORTIE, "run", *options, "--", "env", f"SORTIE_EMULATED_NCCL_FAULT={fault}", TRAINER, "bench", "comm",
                            "--device", "cuda", "--backend", "nccl", "--op", "all_reduce", "--to", "64KB", "--seconds", "3600", "--iterations", "1000000"],
                           env=os.environ | {"XDG_STATE_HOME": folder}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    try:
        said = job.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        job.terminate()
        sys.exit(f"{fault}: the job still ran after {SECONDS} s\n{job.communicate()[0][-3000:]}")
    print(f"{fault}: {job.returncode}\n{said[-1500:]}", flush=True)
    return job.returncode, said


def check(folder, fault, *parts):
    code, said = run(folder, fault)
    missing = [part for part in parts if not re.search(part, said)]
    if code == 0 or missing:
        sys.exit(f"{fault}: exit code {code}; missing: {missing}")


STALLED = f"no collective between GPUs made progress for {LIMIT} s: "
with tempfile.TemporaryDirectory() as folder:
    check(folder, "stop:1:20", STALLED + r"rank 1 \([^)]+\) does not answer: its process is stopped or has ended, or its host can not be reached; "
          "see what happened there, or set SORTIE_COMM_TIMEOUT to more seconds")
    check(folder, "hang:2:20", STALLED + f"all {RANKS} ranks have come to it: the network or a GPU is at fault, not the program of a rank")
    # By the connection of the hosts, or by the question after NCCL's error.
    check(folder, "exit:3:20", r"rank 3 \([^)]+\)")
print("ok")
