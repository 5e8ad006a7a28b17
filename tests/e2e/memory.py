"""Checkpoints in the memory of the hosts: a run resumes from them when all of its ranks are lost at once, together with a host and its
memory. Nothing of that memory outlives the run, however it ends."""

import contextlib
import json
import os
import random
import shutil
import signal
import time

from detach import Detached
from harness import SORTIE, Run, check, equal, executable_of, run_to_end, wait_until, whole_events
from restart import RESTART, events, weights
from training import CONFIG, ENDLESS, compare, losses, settings
from watcher import kill_supervisor

INTERVAL = 5
EVERY = bool(os.environ.get("SORTIE_EVERY_CASE"))
MEMORY = {**RESTART, "trainer.memory_checkpoint_interval": INTERVAL, "recovery.cordon": "false"}


def memory_on(bed, host, run_id):
    """Returns the folders in the host's /dev/shm that are kept for the run. Each host of the bed has its own /dev/shm."""
    return bed.run_in(host, "sh", "-c", f"ls -d /dev/shm/sortie-*/*memory-{run_id}-* 2>/dev/null || true").split()


def expect_no_memory(bed, run_id, seconds):
    def there():
        return {host: kept for host in bed.hosts if (kept := memory_on(bed, host, run_id))}
    wait_until(lambda: not there(), seconds, lambda: f"memory of {run_id} gone: {there()}")


def ranks_of_attempt(bed, attempt, count, seconds=30):
    """Waits until all `count` ranks of the attempt run. Returns {rank: (host, pid)}."""
    def there():
        found = bed.ranks(attempt=attempt)
        return found if len(found) == count else None
    return wait_until(there, seconds, f"{count} ranks of attempt {attempt}")


def kill_at_once(pids):
    """Stops all processes before it kills the first one, so that no survivor can save."""
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


def steps_before(metrics, attempt):
    """Returns the last step that the metrics contain before the start of `attempt`."""
    starts = [index for index, event in enumerate(metrics) if event["type"] == "start"]
    return max(event["step"] for event in metrics[:starts[attempt - 1]] if event["type"] == "step")


def scenario_ranks_and_a_host_are_lost_and_the_memory_of_the_others_is_enough(bed):
    """All ranks are killed at once after a random number of steps, and the run resumes from the memory of the same hosts. Then this happens
    again, together with the loss of the host of rank 0 with everything on it, and a spare takes its place. There is no checkpoint on disk,
    at most the interval is lost, and the weights equal those of an undisturbed run to the bit."""
    steps = 400 if EVERY else 240
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
            ranks = ranks_of_attempt(bed, kill, 3)
            step += chance.randrange(15, 60 if EVERY else 40)
            wait_for_steps(run, step)
            pids = [pid for _, pid in ranks.values()]
            if kill == 2:
                equal(ranks[0][0], "h01", "host of rank 0")
                bed.link("h01", "down")
                pids += [pid for pid, *_ in bed.processes("h01")]
            kill_at_once(pids)
            if kill == 2:  # the host's memory is lost with it
                bed.run_in("h01", "sh", "-c", "rm -rf /dev/shm/sortie-*", as_root=True)
            equal(len(list(folders["killed"].glob("step-*"))), 0, "checkpoints on the disk")
            resumed = wait_until(lambda: events(run, "resumed")[kill:], 60, f"attempt {kill + 1}")[0]
            # The journal records the resume a moment before the metrics do.
            wait_until(lambda: sum(event["type"] == "start" for event in run.metrics()) > kill, 20, "its start in the metrics")
            equal(resumed["from"], "memory", f"where attempt {kill + 1} goes on from ({resumed})")
            # The resumed step may be newer than the metrics: steps that the lost host had not reported yet are in another host's memory.
            equal(resumed["lost_steps"], max(0, steps_before(run.metrics(), kill + 1) - resumed["step"]), "steps lost")
            lost.append(resumed["lost_steps"])
            step = resumed["step"]
        equal(run.wait(120), 0, "exit code")
        seen = losses(run)
        equal(set(events(run, "attempt")[-1]["hosts"]), {"h02", "h03", "h04"}, "hosts of the last attempt")
        report = run_to_end(SORTIE, "report", run.id(), "--log-dir", run.folder)
        check(report.stdout.count(" in memory (") == 2, report.stdout)
        bed.link("h01", "up")
        expect_no_memory(bed, run.id(), 20)
    print(f"steps lost: {lost}")
    check(all(0 <= one <= INTERVAL for one in lost), f"steps lost: {lost}")
    compare(seen, whole, "the run with memory")
    # The lost host may not have reported its last step, which is in the memory of another host. `step` is that of the last resume.
    missing = set(range(1, steps + 1)) - set(seen)
    check(missing <= {step}, f"steps that are not in the metrics: {missing}, and the run was resumed from step {step}")
    equal(weights(folders["killed"], steps), weights(folders["whole"], steps), "weights")
    bed.expect_nothing_left(5)


def holders(bed, host, kept):
    """Returns the pids of Sortie's processes on the host that have one of the folders `kept` open."""
    found = set()
    for pid, *_ in bed.processes(host):
        with contextlib.suppress(OSError):
            if executable_of(pid).startswith("runner-") and \
                    any(os.readlink(f"/proc/{pid}/fd/{one}") in kept for one in os.listdir(f"/proc/{pid}/fd")):
                found.add(pid)
    return found


def scenario_nothing_of_the_memory_outlives_the_run(bed):
    """Four ends: `sortie stop`; an interrupt, or SIGKILL of the supervisor (both only with SORTIE_EVERY_CASE); an interrupt after one holder
    of memory was killed and another one was frozen. No process and no memory is left."""
    options = {**settings(bed, trainer__train_iterations=100000, trainer__save_dir=bed.shared / "memory-ends"), **MEMORY}

    def stop(run):
        run_to_end(SORTIE, "stop", f"{run.folder}/runs/{run.id()}", seconds=30, check=True)

    def lose_holders_then_interrupt(run):
        kept = {host: memory_on(bed, host, run.id()) for host in ("h01", "h02")}
        (killed,), (frozen,) = (holders(bed, host, kept[host]) for host in kept)
        os.kill(killed, signal.SIGKILL)
        os.kill(frozen, signal.SIGSTOP)
        # New holders take over the existing folders.
        wait_until(lambda: holders(bed, "h01", kept["h01"]) - {killed}, 40, "another holder on h01")
        wait_until(lambda: holders(bed, "h02", kept["h02"]) - {frozen}, 40, "another holder on h02")
        os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: frozen not in holders(bed, "h02", kept["h02"]), 20, "the end of the frozen holder")
        for host in kept:
            equal(memory_on(bed, host, run.id()), kept[host], f"memory on {host}")
        run.signal(signal.SIGINT)

    endings = {"stop": stop, "interrupt": lambda run: run.signal(signal.SIGINT),
               "supervisor killed": lambda run: os.killpg(run.process.pid, signal.SIGKILL),
               "holders lost": lose_holders_then_interrupt}
    for name, end in endings.items():
        if not EVERY and name in ("interrupt", "supervisor killed"):
            continue
        shutil.rmtree(bed.shared / "memory-ends", ignore_errors=True)
        with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
            ranks_of_attempt(bed, 1, 2)
            wait_for_steps(run, 2 * INTERVAL)
            equal([len(memory_on(bed, host, run.id())) for host in ("h01", "h02")], [1, 1], "folders of the run")
            end(run)
            run.wait(60)
            expect_no_memory(bed, run.id(), 20)
        bed.expect_nothing_left(10)
        print(f"{name}: nothing left", flush=True)


def scenario_memory_outlives_a_supervisor_that_is_replaced(bed):
    """With a hold: the supervisor is killed, and the next one, started by the watcher, adopts ranks and memory. Then all ranks are killed at
    once, and the run resumes from memory."""
    folder = bed.shared / "memory-adopted"
    shutil.rmtree(folder, ignore_errors=True)
    options = {**settings(bed, trainer__train_iterations=100000, trainer__save_dir=folder), **MEMORY,
               "runner.on_launcher_loss": "hold 60s", "recovery.supervisor_restarts": 10}
    with Detached(bed, config=CONFIG, hosts="h[01-02]", settings=options) as run:
        def journal(name):
            return [event for event in whole_events(run.path / "events.jsonl") if event["event"] == name]

        def kept_at():
            path = run.path / "metrics.jsonl"
            found = whole_events(path) if path.exists() else []
            return max((event["step"] for event in found if event["type"] == "memory_checkpoint"), default=0)

        ranks = ranks_of_attempt(bed, 1, 2)
        wait_until(lambda: kept_at() >= INTERVAL, 60, "a checkpoint in memory")
        kept = memory_on(bed, "h01", run.id)
        kill_supervisor(run)
        wait_until(lambda: journal("adopted"), 40, "the adoption")
        after = kept_at()
        wait_until(lambda: kept_at() > after + INTERVAL, 60, "checkpoints in memory after the adoption")
        equal(memory_on(bed, "h01", run.id), kept, "memory on h01")
        kill_at_once([pid for _, pid in ranks.values()])
        resumed = wait_until(lambda: journal("resumed")[1:], 60, "attempt 2")[0]
        equal(resumed["from"], "memory", f"where attempt 2 goes on from ({resumed})")
        check(resumed["lost_steps"] <= INTERVAL, f"{resumed}")
        status = json.loads(run.sortie("status", "--json", run.id).stdout)
        equal(status["attempts"][1]["resumed"]["from"], "memory", "status")
        equal(run.sortie("stop", run.id).returncode, 0, "exit code of stop")
        expect_no_memory(bed, run.id, 20)
        bed.expect_nothing_left(10)


def scenario_shared_memory_that_is_full(bed):
    """If /dev/shm of a host has no room for two snapshots, the run does not start, and the error names the folder and the remedies. If it
    fills up later, training continues without new snapshots, reports it, and takes snapshots again once there is room."""
    interval = 400
    job = {"hosts": "h[01-02]", "slots": 1}
    folder = bed.shared / "memory-full"
    options = {**settings(bed, trainer__train_iterations=ENDLESS, trainer__save_dir=folder), **RESTART,
               "trainer.memory_checkpoint_interval": interval}

    def fill(but):
        """Fills /dev/shm of h02 except for `but` KiB."""
        free = int(bed.run_in("h02", "df", "--output=avail", "-k", "/dev/shm").split()[-1])
        bed.run_in("h02", "fallocate", "-l", f"{free - but}KiB", "/dev/shm/sortie-e2e-filler", as_root=True)

    def empty():
        bed.run_in("h02", "rm", "-f", "/dev/shm/sortie-e2e-filler", as_root=True)

    def snapshots(run):
        if not (run.folder_of_run() / "metrics.jsonl").exists():
            return []
        return [event["step"] for event in run.metrics() if event["type"] == "memory_checkpoint"]

    bed.run_in("h02", "mount", "-o", "remount,size=256m", "/dev/shm", as_root=True)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        fill(512)
        with Run(bed, config=CONFIG, settings={**options, "recovery.max_restarts": 1}, **job) as run:
            equal(run.wait(60), 3, "exit code")
            run.expect(r"rank 1: trainer\.memory_checkpoint_interval: .*/dev/shm/.*: No space left on device; use more hosts, a larger /dev/shm, or set it to 0")
        empty()
        with Run(bed, config=CONFIG, settings=options, **job) as run:
            ranks = ranks_of_attempt(bed, 1, 2)
            wait_until(lambda: losses(run), 60, "a step")
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for _, pid in ranks.values():
                    os.kill(pid, number)
                if number == signal.SIGSTOP:
                    check(max(losses(run)) < 2 * interval, "the second snapshot has begun already")
                    fill(512)  # the first snapshot has its memory already
            run.wait_for_text(r"no checkpoint in memory, training continues: .*No space left", 120)
            wait_until(lambda: snapshots(run) == [interval], 20, lambda: f"snapshots until then are {snapshots(run)}")
            wait_for_steps(run, 2 * interval + 50)
            empty()
            wait_until(lambda: len(snapshots(run)) >= 3, 120, "snapshots once there is room")
            run.signal(signal.SIGINT)
            equal(run.wait(30), 130, "exit code")
            expect_no_memory(bed, run.id(), 20)
    finally:
        empty()
        bed.run_in("h02", "mount", "-o", "remount,size=50%", "/dev/shm", as_root=True)
    bed.expect_nothing_left(10)
