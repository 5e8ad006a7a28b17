"""Layouts in which several ranks share a model, over real hosts and MPI: losses equal those of one rank and, after a kill, those of an
undisturbed run; another layout can continue from the checkpoint."""

import os
import shutil
import signal

from harness import SANITIZED, Run, check, equal, wait_until
from training import CONFIG, compare, losses, settings, train

EXPERTS = {"model__architecture": "mixtral", "model__moe__num_experts": 4, "model__moe__topk": 2,
           "topology__expert_parallel_size": 2}
CONTEXT = {"topology__context_parallel_size": 2}
FULL = {"topology__parameter_sharding": "full"}
LAYOUT = {"topology__tensor_parallel_size": 2, "topology__sequence_parallel": "true", "topology__pipeline_parallel_size": 2}


def near(seen, whole, what):
    equal(sorted(seen), sorted(whole), f"steps of {what}")
    for step, loss in whole.items():
        check(abs(seen[step] - loss) <= 1e-5 * abs(loss), f"{what}, step {step}: {seen[step]!r}, one rank {loss!r}")


def scenario_tensor_2_pipeline_2_replicas_2_equal_one_rank(bed):
    """Also: one rank continues from the checkpoint of that layout."""
    whole = train(bed, hosts="h01", slots=1, settings=settings(bed))
    checkpoints = bed.shared / "layout"
    shutil.rmtree(checkpoints, ignore_errors=True)
    saving = {"trainer__save_dir": checkpoints, "learning_rate_scheduler__learning_rate_decay_iters": 20}
    first = train(bed, hosts="h[01-04]", slots=2, settings=settings(bed, trainer__train_iterations=10, **saving, **LAYOUT))
    near(first, {step: loss for step, loss in whole.items() if step <= 10}, "8 ranks")
    rest = train(bed, hosts="h01", slots=1, settings=settings(bed, **saving))
    near(rest, {step: loss for step, loss in whole.items() if step > 10}, "one rank after 8")


def scenario_shared_sequences_full_sharding_and_experts_equal_one_rank(bed):
    for model, layout in (({}, CONTEXT | FULL), (EXPERTS, CONTEXT | EXPERTS)):
        steps = settings(bed, trainer__train_iterations=10, optimizer__eps="1e-4", **model)
        whole = train(bed, hosts="h01", slots=1, settings=steps | {"topology.expert_parallel_size": 1})
        near(train(bed, hosts="h[01-04]", slots=1, settings=steps | settings(bed, **layout)), whole, f"4 ranks with {layout}")


def scenario_a_rank_killed_in_any_layout_is_the_first_cause(bed):
    """In every layout the other ranks end, and the job's first cause is the rank that was killed."""
    layouts = {"tensor": {"topology__tensor_parallel_size": 2, "topology__sequence_parallel": "true"},
               "pipeline": {"topology__pipeline_parallel_size": 2}, "context": CONTEXT, "experts": EXPERTS, "full": FULL}
    for victim, (name, layout) in enumerate(layouts.items()):
        options = settings(bed, trainer__train_iterations=1000000, **layout)
        with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=2) as run:
            ranks = run.wait_for_ranks(4, seconds=30)
            wait_until(lambda: len(losses(run)) >= 4, 60, f"4 steps ({name})")
            host, pid = ranks[victim % 4]
            os.kill(pid, signal.SIGKILL)
            equal(run.wait(60), 137, f"exit code ({name})")
            run.expect(rf"rank {victim % 4} on {host} .*SIGKILL")


def scenario_killed_rank_of_a_layout_restarts_to_the_same_losses(bed):
    """With DeMo the state includes each rank's own momentum."""
    steps = 100 if SANITIZED else 300  # many more than before the kill
    for name, layout in (("layout", LAYOUT), ("demo", {"optimizer__name": "demo", "topology__tensor_parallel_size": 2})):
        job = {"hosts": "h[01-02]", "slots": 2}
        options = settings(bed, trainer__train_iterations=steps, **layout)
        whole = train(bed, settings=options, **job)
        checkpoints = bed.shared / f"{name}_killed"
        shutil.rmtree(checkpoints, ignore_errors=True)
        options |= settings(bed, trainer__save_dir=checkpoints, trainer__save_interval=5, recovery__max_restarts=3,
                            recovery__backoff="0s", recovery__restart_on='["app", "software", "hardware"]')
        with Run(bed, config=CONFIG, settings=options, **job) as run:
            ranks = run.wait_for_ranks(4, seconds=30)
            wait_until(lambda: len(losses(run)) >= 12, 60, f"12 steps ({name})")
            os.kill(ranks[3][1], signal.SIGKILL)
            equal(run.wait(120), 0, f"exit code ({name})")
            seen = losses(run)
        compare(seen, whole, f"after a kill ({name})")
        check(max(seen) == steps, f"the last step is {max(seen)} ({name})")
