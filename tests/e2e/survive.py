"""What a training keeps when a rank is lost or gets SIGTERM: the survivors' last save, and the exit code of a run that can be resumed."""

import os
import random
import re
import shutil
import signal
import time

from harness import Failure, Run, check, equal, wait_until
from training import CONFIG, PATIENT, compare, losses, settings, train


def scenario_a_killed_rank_costs_at_most_a_step(bed):
    """SIGKILL of each rank once while nothing is saved regularly: a survivor saves the last state. The victim is rank 0 or another one, on
    the host of the survivors or not."""
    steps, kills = 300, 4
    seed = int(os.environ.get("SORTIE_E2E_SEED", time.time_ns() % 100000))
    print(f"SORTIE_E2E_SEED={seed}", flush=True)
    chance = random.Random(seed)
    job = {"hosts": "h[01-02]", "slots": 2}
    options = {"trainer__train_iterations": steps, "topology__global_batch_size": 4}
    whole = train(bed, seconds=300, settings=settings(bed, **options), **job)
    folder = bed.shared / "survive"
    shutil.rmtree(folder, ignore_errors=True)
    saving = settings(bed, trainer__save_dir=folder, **options, **PATIENT)
    reached, lost, savers = 0, [], []
    for kill in range(kills):
        with Run(bed, config=CONFIG, settings=saving, **job) as run:
            ranks = run.wait_for_ranks(4, seconds=30)
            victim = kill % 4 if kill < 4 else chance.randrange(4)
            wait_until(lambda: len(losses(run)) >= 5 + chance.randrange(10), 60, "some steps")
            time.sleep(chance.uniform(0.0, 0.01))
            check(run.process.poll() is None, f"all {steps} steps were done after {kill} kills")
            os.kill(ranks[victim][1], signal.SIGKILL)
            equal(run.wait(60), 137, "exit code")
            seen = losses(run)
            savers.append((victim, re.findall(r"\[(\d) h\d+\].*this rank has saved the state of step (\d+)", run.text())))
        compare(seen, whole, f"run {kill + 1}")
        if kill > 0:
            lost.append(reached - (min(seen) - 1))
        reached = max(seen)
    with Run(bed, config=CONFIG, settings=saving, **job) as run:
        equal(run.wait(300), 0, "exit code of the last run")
        seen = losses(run)
    compare(seen, whole, "last run")
    lost.append(reached - (min(seen) - 1))
    check(steps in seen, "the last run did not reach the last step")
    print(f"steps lost at each kill: {lost}; (victim, who saved which step): {savers}")
    check(all(steps_lost <= 1 for steps_lost in lost), f"steps lost: {lost}")


def scenario_a_rank_that_is_asked_to_end_saves_and_can_go_on(bed):
    """SIGTERM to one rank: all save at the end of the step and exit with 75; the same command resumes."""
    folder = bed.shared / "asked"
    shutil.rmtree(folder, ignore_errors=True)
    options = settings(bed, trainer__train_iterations=100000, trainer__save_dir=folder, **PATIENT)
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
        ranks = run.wait_for_ranks(2, seconds=30)
        wait_until(lambda: len(losses(run)) >= 10, 60, "10 steps")
        os.kill(ranks[1][1], signal.SIGTERM)
        equal(run.wait(60), 75, "exit code")
        seen = losses(run)
        run.expect(rf"stopped by SIGTERM after step {max(seen)}, with a checkpoint in ")
        bed.expect_nothing_left(10)
    with Run(bed, config=CONFIG, settings={**options, "trainer.train_iterations": max(seen) + 3}, hosts="h[01-02]", slots=1) as run:
        equal(run.wait(60), 0, "exit code of the same command")
        equal(min(losses(run)), max(seen) + 1, "first step")


def reaches(bed, host, other):
    try:
        bed.run_in(host, "bash", "-c", f"exec 3<>/dev/tcp/{bed.address(other)}/22")
    except Failure:
        return False
    return True


def scenario_survivors_save_when_a_host_is_cut_off(bed):
    """The link of a host goes down: the rank on the other host has the whole state and saves it in save_dir."""
    folder = bed.shared / "cut"
    shutil.rmtree(folder, ignore_errors=True)
    options = settings(bed, trainer__train_iterations=100000, trainer__save_dir=folder, runner__heartbeat_timeout="5s",
                       runner__heartbeat_interval="500ms", **PATIENT)
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
        run.wait_for_ranks(2, seconds=30)
        wait_until(lambda: len(losses(run)) >= 10, 60, "10 steps")
        bed.link("h02", "down")
        try:
            equal(run.wait(90), 5, "exit code")
            reached = max(losses(run))
        finally:
            bed.link("h02", "up")
        bed.expect_nothing_left(30)
    # Open MPI tries to connect only once, which fails while the kernel still looks for the neighbour.
    wait_until(lambda: reaches(bed, "h02", "h01") and reaches(bed, "h01", "h02"), 20, "the hosts reach each other again")
    with Run(bed, config=CONFIG, settings={**options, "trainer.train_iterations": reached + 3}, hosts="h[01-02]", slots=1) as run:
        equal(run.wait(60), 0, "exit code of the same command")
        first = min(losses(run))
        print(f"reached step {reached}, went on with {first}")
        check(first in (reached, reached + 1, reached + 2), f"reached step {reached}, went on with {first}")
