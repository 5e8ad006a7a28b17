"""One run of sortie-train with fault after fault: each has the right class and is decided in time, no committed step is lost, and the
weights at the end equal those of an undisturbed run to the bit. docs/faults.md has the table of faults."""

import contextlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

from endings import memory_limit
from fault_kinds import SETTINGS, Scene, make
from harness import SANITIZED, Gates, Run, check, equal, wait_until
from health import XID, KernelLog, health_events
from nodes import kill_rank, sortie
from reconnect import fill
from restart import RESTART, events, ranks_of, weights
from training import CONFIG, ENDLESS, compare, losses, settings
from training_run import Lines, TrainingRun, last_checkpoint
from victims import left_on_all, wait_for

HOSTS, SLOTS = "h[01-04]", 2
# Long enough that a busy host is not lost.
CALM = {**RESTART, "runner.heartbeat_interval": "1s", "runner.heartbeat_timeout": "6s"}
# One fault for each class that restarts, except `app`: see restart.exit_code_restarts_and_stop_exit_code_does_not.
OF_EACH_CLASS = ("kill", "stop", "oom", "term", "runner")
THE_OTHERS = ("crash", "hang", "link", "lost", "supervisor")
HOST_MEMORY = (2048 if SANITIZED else 512) << 20


def scenario_faults_in_turn_and_the_same_weights(bed):
    every = bool(os.environ.get("SORTIE_EVERY_CASE"))
    seed = int(os.environ.get("SORTIE_E2E_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"SORTIE_E2E_SEED={seed}", flush=True)
    chance = random.Random(seed)
    kinds = [*OF_EACH_CLASS, *(THE_OTHERS if every else ())]
    chance.shuffle(kinds)
    folders = {name: bed.shared / f"faults-{name}" for name in ("struck", "whole")}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    saving = {"trainer__save_interval": 10, "trainer__keep_last": 3, "topology__global_batch_size": 8}
    chosen = {**settings(bed, trainer__save_dir=folders["struck"], trainer__train_iterations=ENDLESS, **saving), **SETTINGS}
    with contextlib.ExitStack() as stack:
        for host in bed.hosts:
            stack.enter_context(memory_limit(bed, host, HOST_MEMORY))
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sortie-faults-")))
        run = stack.enter_context(TrainingRun(bed, state, HOSTS, SLOTS, chosen))
        scene = Scene(run, 8)
        run.wait_for_step_after(0.0)
        for kind in kinds:
            outcome = make(scene, kind, chance)
            print(f"{outcome.text}: {outcome.found}, {outcome.delay:.2f} s to the decision, {outcome.to_step:.2f} s to the next step, "
                  f"{outcome.lost} steps lost", flush=True)
        equal(run.stop(40), 143, "exit code of a run that was stopped")
        struck = run.note_losses()
        bed.expect_nothing_left(5)
        # Includes leftovers of killed ranks: shared memory, sockets, folders.
        check(wait_for(lambda: not left_on_all(bed, bed.hosts), 5), f"left: {left_on_all(bed, bed.hosts)}")
    steps = last_checkpoint(folders["struck"])
    chosen = settings(bed, trainer__save_dir=folders["whole"], trainer__train_iterations=steps, **saving)
    with Run(bed, config=CONFIG, hosts=HOSTS, slots=SLOTS, settings=chosen) as run:
        equal(run.wait(200), 0, "exit code of the run without a fault")
        whole = losses(run)
    compare({step: loss for step, loss in struck.items() if step <= steps}, whole, "the run with faults")
    equal(weights(folders["struck"], steps), weights(folders["whole"], steps), f"hashes of the checkpoint of step {steps}")


def scenario_save_dir_without_room(bed):
    """Saves fail while the disk is full: this is reported, nothing restarts, and the next save with room is committed."""
    small = "/tmp/small-save-dir"
    bed.run_in("h01", "sh", "-c", f"mkdir -p {small}; mount -t tmpfs -o size=24m,mode=0777 tmpfs {small}", as_root=True)
    try:
        inside = Path(f"/proc/{bed.bed.init_pid(1)}/root{small}")
        chosen = settings(bed, trainer__save_dir=small, trainer__train_iterations=ENDLESS, trainer__save_interval=10, trainer__keep_last=2)
        with Run(bed, config=CONFIG, hosts="h01", slots=2, settings={**chosen, **CALM}) as run:
            metrics = Lines(wait_until(run.folder_of_run, 20, "the run's folder") / "metrics.jsonl")
            def told(kind):
                return [event for event in metrics.read() if event["type"] == kind]
            wait_until(lambda: told("checkpoint"), 60, "a checkpoint")
            fill(inside / "filler")
            def failed():
                fill(inside / "filler")  # again, because a replaced checkpoint has freed its space
                return [note["text"] for note in told("note") if "training continues" in note["text"]]
            notes = wait_until(failed, 60, "a save that failed")
            check("no checkpoint" in notes[0] and str(small) in notes[0], notes[0])
            good = {event["step"] for event in told("checkpoint")}
            check(last_checkpoint(inside) >= max(good), "a checkpoint that was committed is gone")
            (inside / "filler").unlink()
            wait_until(lambda: {event["step"] for event in told("checkpoint")} - good, 60, "a checkpoint after it")
            equal([event["attempt"] for event in events(run, "attempt")], [1], "attempts")
            run.signal(2)
            equal(run.wait(30), 130, "exit code")
        bed.expect_nothing_left(5)
    finally:
        bed.run_in("h01", "sh", "-c", f"umount -l {small}; rmdir {small}", as_root=True)


def scenario_host_lost_and_fewer_go_on(bed):
    """No spare, recovery.min_hosts: three hosts instead of four share the same global batch. When the fourth one is back, all four continue
    after a commit. Losses agree within 1e-7."""
    folder = bed.shared / "fewer"
    shutil.rmtree(folder, ignore_errors=True)
    # At tiny.toml's learning rate, rounding differences from another order of sums grow by a quarter per step and exceed 1e-5 in 20 steps.
    options = {"topology__global_batch_size": 12, "learning_rate_scheduler__learning_rate": 1e-4}
    chosen = {**settings(bed, trainer__save_dir=folder, trainer__save_interval=10, trainer__train_iterations=ENDLESS, **options),
              **CALM, "recovery.min_hosts": 2, "recovery.grow_at": "checkpoint", "recovery.fit_interval": "1s",
              "runner.grace": "20s"}  # time for the save before the planned restart
    with Run(bed, config=CONFIG, hosts=HOSTS, slots=1, settings=chosen) as run:
        ranks_of(run, 1, 4)
        wait_until(lambda: len(losses(run)) >= 15, 60, "15 steps")
        bed.link("h03", "down")
        ranks = ranks_of(run, 2, 3)
        equal(sorted(host for host, _ in ranks.values()), ["h01", "h02", "h04"], "hosts of attempt 2")
        equal(events(run, "attempt_end")[0]["class"], "hardware", "class")
        begun = events(run, "attempt")[1]["time"]
        wait_until(lambda: sum(e["type"] == "step" and e["time"] > begun for e in run.metrics()) >= 20, 60, "20 steps of attempt 2")
        bed.link("h03", "up")
        wait_until(lambda: events(run, "attempt")[2:], 60, "attempt 3")
        equal(events(run, "attempt")[2]["hosts"], ["h01", "h02", "h03", "h04"], "hosts of attempt 3")
        planned = events(run, "attempt_end")[1]
        equal(planned["class"], "planned", "class of the second end")
        resumed = wait_until(lambda: events(run, "resumed")[2:], 60, "where attempt 3 goes on")[0]
        equal(resumed["lost_steps"], 0, f"steps that the planned restart has cost ({resumed})")
        begun = events(run, "attempt")[2]["time"]
        wait_until(lambda: sum(e["type"] == "step" and e["time"] > begun for e in run.metrics()) >= 20, 60, "20 steps of attempt 3")
        run.signal(2)
        equal(run.wait(60), 130, "exit code")
        seen = losses(run)
        bed.expect_nothing_left(20)
    steps = max(seen)
    with Run(bed, config=CONFIG, hosts=HOSTS, slots=1, settings=settings(bed, trainer__train_iterations=steps, **options)) as run:
        equal(run.wait(200), 0, "exit code of the run on four hosts")
        whole = losses(run)
    for step, loss in seen.items():
        check(abs(loss - whole[step]) <= 1e-7 * abs(whole[step]), f"step {step}: {loss!r}, on four hosts {whole[step]!r}")


def scenario_gpu_off_the_bus_and_a_spare(bed):
    """XID 79 explains the failure of a rank: the class is hardware, the host is cordoned at once, and a spare takes its ranks."""
    with Gates(bed) as gates, KernelLog(bed, "h02") as log:
        script = f'test "$SORTIE_ATTEMPT" = 1 || exit 0; test "$RANK" = 1 || exec sleep 1000; {gates.wait("fail")}; exit 3'
        with Run(bed, "sh", "-c", script, hosts="h[01-02]", slots=1, settings={**CALM, "recovery.spares": '["h03 slots=1"]'}) as run:
            ranks_of(run, 1, 2)
            wait_until(lambda: health_events(run, "h02", "sources"), 60, "what is watched on h02")
            log.say(XID)
            wait_until(lambda: health_events(run, "h02", "xid"), 60, "the XID in the journal")
            gates.open("fail")
            equal(run.wait(60), 0, "exit code")
            end = events(run, "attempt_end")[0]
            equal((end["class"], end["blamed"]), ("hardware", "h02"), "class, and who is blamed")
            equal(events(run, "attempt")[1]["hosts"], ["h01", "h03"], "hosts of attempt 2")
            equal([one["host"] for one in json.loads(sortie("nodes", "ls", "--json")[1])["cordoned"]], ["h02"], "cordoned hosts")
    bed.expect_nothing_left(5)


def scenario_no_spare_is_fit_and_the_host_stays(bed):
    """The host is blamed twice, but the only spare lacks the program: the run stays on its hosts and does not cordon one that it needs."""
    program = "/tmp/sortie-e2e-job"
    for host in ("h01", "h02"):
        bed.run_in(host, "sh", "-c", f"printf '#!/bin/sh\\nexec sleep 1000\\n' > {program}; chmod +x {program}")
    try:
        with Run(bed, program, hosts="h[01-02]", slots=1, settings={**CALM, "recovery.spares": '["h03 slots=1"]'}) as run:
            for attempt in (1, 2):
                kill_rank(run, attempt, "h02", 2)
            equal({host for host, _ in ranks_of(run, 3, 2).values()}, {"h01", "h02"}, "hosts")
            run.wait_for_text(r"spare h03 is not fit: .*program")
            run.wait_for_text(r"h02 was blamed twice, but no spare is left and the run needs it: it stays")
            equal(json.loads(sortie("nodes", "ls", "--json")[1])["cordoned"], [], "cordoned hosts")
            run.signal(2)
            equal(run.wait(20), 130, "exit code")
    finally:
        for host in ("h01", "h02"):
            bed.run_in(host, "rm", "-f", program)
    bed.expect_nothing_left(5)
