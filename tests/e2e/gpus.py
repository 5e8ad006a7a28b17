"""Ranks with one GPU each, which find each other without MPI. GPUs and NCCL are emulated."""

import os
import signal

from harness import BUILD, TRAINER, Run, check, equal, wait_until, whole_events
from training import CONFIG, ENDLESS, build_tokens, losses, settings, train

MODULE = BUILD / "emulated/libsortie-cuda-emulated.so"
GPUS = {"trainer.device": "cuda", "topology.backend": "nccl", "runner.env.SORTIE_CUDA_MODULE": MODULE}
STEPS = {"trainer.train_iterations": 6}
HANG = 6


def scenario_2_hosts_x_2_with_nccl_equal_one_rank(bed):
    whole = train(bed, hosts="h01", slots=1, settings=settings(bed) | STEPS)
    with Run(bed, config=CONFIG, hosts="h[01-02]", slots=2, settings=settings(bed) | GPUS | STEPS) as run:
        equal(run.wait(120), 0, "exit code")
        seen = losses(run)
        run.expect_not("mpi")
    equal(sorted(seen), sorted(whole), "steps over 4 GPUs")
    for step, loss in whole.items():
        check(abs(seen[step] - loss) <= 1e-5 * abs(loss), f"step {step}: {seen[step]!r} on 4 GPUs, {loss!r} on one rank")


def scenario_a_rank_killed_beside_nccl_is_the_first_cause(bed):
    options = settings(bed) | GPUS | {"trainer.train_iterations": 1000000}
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=2) as run:
        ranks = run.wait_for_ranks(4, seconds=30)
        wait_until(lambda: len(losses(run)) >= 2, 90, "2 steps")
        host, pid = ranks[2]
        os.kill(pid, signal.SIGKILL)
        equal(run.wait(60), 137, "exit code")
        run.expect(rf"rank 2 on {host} .*SIGKILL")


def events(run, name):
    return [event for event in whole_events(run.folder_of_run() / "events.jsonl") if event["event"] == name]


def scenario_a_gpu_that_hangs_is_blamed(bed):
    """After some steps the GPU of rank 2 begins no kernel. The hosts of all ranks have then submitted the same work."""
    options = settings(bed) | GPUS | {"trainer.train_iterations": ENDLESS, "watchdog.hang_timeout": "20s", "runner.heartbeat_interval": "1s",
                                      "runner.env.EMULATED_GPU_FAULT": "hang:2:2000"}
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=2) as run:
        ranks = run.wait_for_ranks(4, seconds=30)
        equal(run.wait(180), HANG, "exit code")
        hang = events(run, "hang")[0]
        equal((hang["behind"], hang["host"], hang["standing_ranks"]), ([2], ranks[2][0], 4), f"whom the others wait for: {hang['text']}")
        check(losses(run), "steps before it")
    bed.expect_nothing_left(10)


def scenario_a_slow_gpu_is_a_slow_host(bed):
    """Kernels of rank 1 take longer by the clock of its GPU alone: its host is as fast as the others."""
    options = settings(bed) | GPUS | {"trainer.train_iterations": ENDLESS, "topology.global_batch_size": 6, "watchdog.straggler_windows": 2,
                                      "runner.env.EMULATED_GPU_FAULT": "slow:1:2000"}
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-03]", slots=1) as run:
        run.wait_for_ranks(3, seconds=30)  # the run's folder is there
        slow = wait_until(lambda: events(run, "straggler"), 150, "a slow host in the journal")
        equal([event["host"] for event in slow], ["h02"], f"slow hosts: {slow}")
        run.expect(r"h02: its own work takes [\d.]+ ms a step")
        run.signal(signal.SIGINT)
        equal(run.wait(30), 130, "exit code")


def scenario_bench_comm_over_nccl_has_right_values(bed):
    job = {"runner.env.SORTIE_CUDA_MODULE": MODULE}
    with Run(bed, BUILD / "bin/sortie-train", "bench", "comm", "--device", "cuda", "--to", "2KB", "--iterations", "2",
             settings=job, hosts="h[01-02]", slots=2) as run:
        equal(run.wait(90), 0, "exit code")
        run.expect(r"# 4 ranks, NCCL 2\.28\.9")
        run.expect(r"all_to_all +2048 .* 0\s*\n")


def scenario_nccl_without_a_gpu_is_refused(bed):
    options = settings(bed) | {"topology.backend": "nccl", "trainer.device": "cpu"}
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
        check(run.wait(60) != 0, "exit code")
        run.expect("topology.backend: nccl is for ranks with a GPU each")


def scenario_one_host_without_a_gpu_is_named(bed):
    job = bed.shared / "mixed.toml"
    job.write_text(f'{CONFIG.read_text()}\n[data]\ndata_prefixes = ["{build_tokens(bed)}"]\n')
    job.chmod(0o644)
    script = f"[ $SORTIE_HOST = h02 ] || export SORTIE_CUDA_MODULE={MODULE}; exec {TRAINER} train {job}"
    with Run(bed, "sh", "-c", script, hosts="h[01-03]", slots=1) as run:
        equal(run.wait(60), 3, "exit code")
        run.expect(r"device differs: cpu on rank 1 \(h02\), emulated GPU \(9\.0\) on ranks 0,2 \(h\[01,03\]\); rank 1 \(h02\): no GPU: ")
        run.expect(r"leave out h02 \(--exclude 'h02'\)")
