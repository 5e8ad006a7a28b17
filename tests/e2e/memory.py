"""Checkpoints in the memory of the hosts: what a run goes on from when all of its ranks are gone at once, a host with its memory among
them; and that nothing of that memory outlives the run, however it ends."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from harness import SORTIE, Run, check, equal, wait_until
from restart import RESTART, events, ranks_of, weights
from training import CONFIG, compare, losses, settings

INTERVAL = 5
MEMORY = {**RESTART, "trainer.memory_checkpoint_interval": INTERVAL, "recovery.cordon": "false"}


def folders_of(run_id):
    """What holders keep for the run; the hosts of the bed share a machine, so all of them are seen."""
    return sorted(Path("/dev/shm").glob(f"sortie-*/*memory-{run_id}-*"))


def expect_no_memory(run_id, seconds):
    wait_until(lambda: not folders_of(run_id), seconds, f"memory of {run_id} gone: {folders_of(run_id)}")


def starts(run):
    """The step at which each attempt has begun."""
    return [event["step"] for event in run.metrics() if event["type"] == "start"]


def kill_at_once(bed, pids):
    """Nobody is left to save anything: they are stopped before the first one dies."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def wait_for_steps(run, step):
    wait_until(lambda: max(losses(run), default=0) >= step, 90, f"step {step}")


def undisturbed(bed, folder, options, job):
    shutil.rmtree(folder, ignore_errors=True)
    with Run(bed, config=CONFIG, settings=settings(bed, trainer__save_dir=folder, **options), **job) as run:
        equal(run.wait(120), 0, "exit code of the run without a failure")
        return losses(run)


def scenario_ranks_and_a_host_are_lost_and_the_memory_of_the_others_is_enough(bed):
    """All ranks killed at once, at random steps: the run goes on from the memory of the same hosts. Then once more, together with the
    host of rank 0, with everything on it: a spare takes its place. No checkpoint is on the disk; no more than the interval is lost, and
    the weights are those of a run in which nothing happened, to the bit."""
    steps = 400
    seed = int(os.environ.get("SORTIE_E2E_SEED", time.time_ns() % 100000))
    print(f"SORTIE_E2E_SEED={seed}", flush=True)
    chance = random.Random(seed)
    job = {"hosts": "h[01-03]", "slots": 1}
    options = {"trainer__train_iterations": steps, "topology__global_batch_size": 6}
    folders = {name: bed.shared / f"memory-{name}" for name in ("whole", "killed")}
    whole = undisturbed(bed, folders["whole"], options, job)
    shutil.rmtree(folders["killed"], ignore_errors=True)
    saving = settings(bed, trainer__save_dir=folders["killed"], **options)
    lost, step = [], 0
    with Run(bed, config=CONFIG, settings={**saving, **MEMORY, "recovery.spares": '["h04 slots=1"]'}, **job) as run:
        for kill in (1, 2):
            ranks = ranks_of(run, kill, 3)
            step += chance.randrange(15, 60)
            wait_for_steps(run, step)
            pids = [pid for _, pid in ranks.values()]
            if kill == 2:
                equal(ranks[0][0], "h01", "host of rank 0")
                bed.link("h01", "down")
                pids += [pid for pid, *_ in bed.processes("h01")]
            kill_at_once(bed, pids)
            equal(len(list(folders["killed"].glob("step-*"))), 0, "checkpoints on the disk")
            wait_until(lambda: len(starts(run)) > kill, 60, "the next attempt")
            reached = max(event["step"] for event in run.metrics()[:index_of_start(run, kill)] if event["type"] == "step")
            lost.append(reached - starts(run)[kill])
            step = starts(run)[kill]
        equal(run.wait(120), 0, "exit code")
        seen = losses(run)
        name = run.id()
        equal({host for host, _ in hosts_of(run)}, {"h02", "h03", "h04"}, "hosts of the last attempt")
        bed.link("h01", "up")
        expect_no_memory(name, 5)
    print(f"steps lost: {lost}")
    check(all(0 <= one <= INTERVAL for one in lost), f"steps lost: {lost}")
    compare(seen, whole, "the run with memory")
    equal(len(seen), steps, "steps that were taken")
    equal(weights(folders["killed"], steps), weights(folders["whole"], steps), "weights")
    bed.expect_nothing_left(5)


def index_of_start(run, number):
    found = [index for index, event in enumerate(run.metrics()) if event["type"] == "start"]
    return found[number]


def hosts_of(run):
    return [(host, 0) for host in events(run, "attempt")[-1]["hosts"]]


def scenario_nothing_of_the_memory_outlives_the_run(bed):
    """Stopped, interrupted, its supervisor killed, a holder killed: no process and no memory is left."""
    options = {**settings(bed, trainer__train_iterations=100000, trainer__save_dir=bed.shared / "memory-ends"), **MEMORY}

    def stop(run):
        subprocess.run([SORTIE, "stop", f"{run.folder}/runs/{run.id()}"], check=True, capture_output=True, timeout=30)

    def kill_holder_then_stop(run):
        held = folders_of(run.id())
        pid = holder_pid(bed, "h01", held)
        os.kill(pid, signal.SIGKILL)
        # Another one takes over what is there.
        wait_until(lambda: holder_pid(bed, "h01", held) not in (None, pid), 20, "another holder")
        equal(folders_of(run.id()), held, "folders")
        run.signal(signal.SIGINT)

    endings = {"stop": stop, "interrupt": lambda run: run.signal(signal.SIGINT),
               "supervisor killed": lambda run: os.killpg(run.process.pid, signal.SIGKILL),
               "holder killed": kill_holder_then_stop}
    for name, end in endings.items():
        shutil.rmtree(bed.shared / "memory-ends", ignore_errors=True)
        with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
            ranks_of(run, 1, 2)
            wait_for_steps(run, 2 * INTERVAL)
            equal(len(folders_of(run.id())), 2, "folders of the run")
            end(run)
            run.wait(30)
            expect_no_memory(run.id(), 10)
        bed.expect_nothing_left(10)
        print(f"{name}: nothing left", flush=True)


def holder_pid(bed, host, held):
    """The process of the host that keeps one of the folders open."""
    for pid, *_ in bed.processes(host):
        with contextlib.suppress(OSError):
            for one in Path(f"/proc/{pid}/fd").iterdir():
                if Path(os.readlink(one)) in held:
                    return pid
    return None
