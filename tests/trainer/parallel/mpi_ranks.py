#!/usr/bin/env python3
"""mpi_ranks.py SORTIE_TRAIN [--large]: tests collectives over real MPI ranks under mpirun: right values for every operation and type, and
the exit of ranks that wait for a silent one. --large: tests more elements than an int can count, instead; needs 10 GiB of memory."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

SECONDS = 90  # enough on a busy machine; a deadlock never ends
TRAINER = str(pathlib.Path(sys.argv[1]).resolve())
OPERATIONS = 6


def as_rank(arguments):
    """Executes `sortie-train bench comm` as the rank that Open MPI's environment names. Rank 1 prints its pid."""
    os.environ |= {"RANK": os.environ["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"],
                   "LOCAL_RANK": os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]}
    if os.environ["RANK"] == "1":
        print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
    os.execv(TRAINER, [TRAINER, "bench", "comm", *arguments])


def start(ranks, *arguments, **environment):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "btl", "self,vader,tcp",
               "--mca", "mpi_yield_when_idle", "1", sys.executable, __file__, TRAINER, "--rank", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **environment})


def finish(job, seconds=SECONDS):
    try:
        out, err = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        job.terminate()  # mpirun then ends its ranks
        out, err = job.communicate(timeout=SECONDS)
        sys.exit(f"the job still ran after {seconds} s\n--- stdout\n{out[-2000:]}\n--- stderr\n{err[-2000:]}")
    return job.returncode, out, err


def rows(ranks, *arguments, seconds=SECONDS, **environment):
    code, out, err = finish(start(ranks, "--json", "--seconds", "0", *arguments, **environment), seconds)
    if code != 0:
        sys.exit(f"{ranks} ranks, {arguments}: exit code {code}\n{out[-2000:]}\n{err[-2000:]}")
    report = json.loads(out)
    if report["schema"] != "sortie/bench-comm/1" or report["ranks"] != ranks:
        sys.exit(f"another report: {out}")
    return report


def check_values():
    for ranks, arguments in ((2, ["--dtype", "f32"]), (3, ["--dtype", "bf16"]), (4, ["--dtype", "i64"]),
                             (3, ["--dtype", "u8", "--redop", "max"])):
        # Sizes below and above the thresholds between algorithms; several segments.
        report = rows(ranks, "--from", "4", "--to", "4MB", "--factor", "8", *arguments, SORTIE_COMM_DEBUG="1")
        found = {row["operation"] for row in report["rows"]}
        wrong = [row for row in report["rows"] if row["wrong"]]
        if len(found) != OPERATIONS or len(report["rows"]) < OPERATIONS * 5 or wrong:
            sys.exit(f"{ranks} ranks, {arguments}: {sorted(found)}, wrong: {wrong}")
        if any(row["us"] <= 0 or row["busbw"] <= 0 for row in report["rows"]):
            sys.exit(f"a row without time: {report['rows']}")
    links = rows(4, "--links", "--link-bytes", "1MB")["links"]
    if len(links["pairs"]) != 6 or len(links["ring"]) != 4 or any(row["gbit_s"] <= 0 for row in links["pairs"] + links["ring"]):
        sys.exit(f"links of 4 ranks: {links}")
    print("values of all operations are right", flush=True)


def check_large():
    """MPI counts with ints: more than 2^31 elements, and blocks of more than 2^30 bytes for each of two ranks, are sent in several messages."""
    elements = 2**31 + 6 * 2**20
    for operations, redop in (("all_reduce,reduce_scatter", "max"), ("all_gather,broadcast,all_to_all,ring", "sum")):
        report = rows(2, "--op", operations, "--dtype", "u8", "--redop", redop, "--from", str(elements), "--to", str(elements), "--iterations", "1", seconds=1500)
        print([f"{row['operation']} {row['us'] / 1e6:.1f} s" for row in report["rows"]], flush=True)
        if [row["operation"] for row in report["rows"]] != operations.split(",") or any(row["wrong"] or row["count"] != elements for row in report["rows"]):
            sys.exit(f"of {elements} elements: {report['rows']}")
    print(f"{elements} elements are right", flush=True)


def check_silent_rank():
    """Stops rank 1 during a collective: the others name the rank that they wait for and end the job."""
    job = start(3, "--op", "all_reduce", "--from", "4MB", "--to", "4MB", "--seconds", "60", "--iterations", "100000",
                SORTIE_COMM_TIMEOUT="10")  # longer than live ranks may stall on a busy machine
    late = threading.Timer(SECONDS, job.kill)
    late.start()
    victim, said = None, ""
    for line in job.stdout:
        if line.startswith("# operation"):  # all ranks are in the first all-reduces
            break
    for line in job.stderr:
        said += line
        if line.startswith("pid "):
            victim = int(line.split()[1])
            break
    if victim is None:
        sys.exit(f"rank 1 did not start\n{said}")
    time.sleep(1)
    os.kill(victim, signal.SIGSTOP)  # mpirun's SIGKILL ends it nevertheless
    code, _, err = finish(job)
    late.cancel()
    said += err
    # Another rank that waits for the stopped one may be named, too.
    for part in (r"of group world \(3 ranks\): nothing has arrived for 10 s; ranks? (?:1|0-1|1-2|0-2) of the run did not answer", "all-reduce"):
        if not re.search(part, said):
            sys.exit(f"exit code {code}, not on stderr: {part}\n{said[-3000:]}")
    if code == 0:
        sys.exit("the job ended as if nothing had happened")
    print(f"a silent rank: ended with {code}", flush=True)


def main():
    if sys.argv[2:3] == ["--rank"]:
        as_rank(sys.argv[3:])
    if sys.argv[2:] == ["--large"]:
        return check_large()
    check_values()
    check_silent_rank()


main()
