"""The trainer as a job: several hosts train as one rank does, and a killed run continues as if it had not been killed."""

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from harness import BUILD, HOSTS, PATIENCE, ROOT, SANITIZED, SORTIE, TRAINER, Failure, Run, check, equal, run_to_end, wait_until, whole_events
from machine_clock import now

CONFIG = ROOT / "tests/e2e/tiny.toml"
ENDLESS = 1_000_000  # steps; the scenario ends the run
PATIENT = {"runner__grace": "20s"}  # the save at the end takes seconds on a busy machine
EVERY = bool(os.environ.get("SORTIE_EVERY_CASE"))


def build_tokens(bed):
    """Builds token files from the project's own sources, at the same path on all hosts. Returns their prefix."""
    prefix = bed.shared / "tokens"
    if not (bed.shared / "tokens.idx").exists():
        done = run_to_end(TRAINER, "data", "build", "--tokenizer", "byte", "--output", prefix, "--overwrite",
                      "--include", "*.h", "--include", "*.cc", ROOT / "common", ROOT / "launcher")
        check(done.returncode == 0, f"data build: {done.stderr}")
        for path in bed.shared.glob("tokens.*"):
            path.chmod(0o644)
    return prefix


def settings(bed, **more):
    return {"data.data_prefixes": f'["{build_tokens(bed)}"]',
            **{name.replace("__", "."): value for name, value in more.items()}}


def losses(run):
    """Returns {step: loss} from the metrics; JSON keeps every bit of a double."""
    found = {}
    try:
        events = run.metrics()
    except (OSError, TypeError):
        return found
    for event in events:
        if event["type"] == "step":
            found[event["step"]] = event["loss"]
    return found


def train(bed, seconds=120, config=CONFIG, **arguments):
    with Run(bed, config=config, **arguments) as run:
        equal(run.wait(seconds), 0, "exit code")
        return losses(run)


def scenario_4_hosts_x_2_equal_one_rank(bed):
    single = train(bed, hosts="h01", slots=1, settings=settings(bed))
    spread = train(bed, hosts="h[01-04]", slots=2, settings=settings(bed))
    equal(sorted(single), list(range(1, 21)), "steps of the single rank")
    equal(sorted(spread), sorted(single), "steps over 8 ranks")
    for step, loss in single.items():
        check(abs(spread[step] - loss) <= 1e-5 * abs(loss), f"step {step}: {spread[step]!r} on 8 ranks, {loss!r} on one")
    check(single[20] < single[1] - 0.5, f"nothing was learned: {single[1]} -> {single[20]}")


def scenario_killed_again_and_again_equals_uninterrupted(bed):
    """kill -9 of a random rank at a random moment while every step is saved."""
    steps, kills = (400, 20) if EVERY else (160, 8)
    seed = int(os.environ.get("SORTIE_E2E_SEED", time.time_ns() % 100000))
    print(f"SORTIE_E2E_SEED={seed}", flush=True)
    chance = random.Random(seed)
    job = {"hosts": "h[01-02]", "slots": 1}
    options = {"trainer__keep_last": 3, "topology__global_batch_size": 4}
    checkpoints = bed.shared / "killed"
    shutil.rmtree(checkpoints, ignore_errors=True)
    saving = settings(bed, trainer__save_dir=checkpoints, trainer__save_interval=1, **options)
    endless = {**saving, "trainer.train_iterations": ENDLESS}  # no run ends before its kill
    done, reached, first_steps, runs = 0, 0, [], []
    while done < kills:
        with Run(bed, config=CONFIG, settings=endless, **job) as run:
            ranks = run.wait_for_ranks(2, seconds=30)
            victim = ranks[chance.randrange(2)][1]
            if done % 2:  # on a slow machine, too, some runs get past a checkpoint
                wait_until(lambda: len(losses(run)) >= 2, 60, "two steps")
            wait_or_steps(run, chance.uniform(0.0, 1.2), chance.randint(1, max(1, (steps - reached) // (kills - done + 1))))
            time.sleep(chance.uniform(0.0, 0.005))
            os.kill(victim, signal.SIGKILL)
            equal(run.wait(60), 137, "exit code")
            seen = losses(run)
        runs.append(seen)
        reached = max(seen, default=reached)
        first_steps.append(min(seen, default=None))
        done += 1
    print(f"first steps after each kill: {first_steps}")
    check(any(step and step > 1 for step in first_steps), "no run went on from a checkpoint")
    steps = max([steps, *(step + 20 for seen in runs for step in seen)])
    whole = train(bed, seconds=300, settings=settings(bed, trainer__train_iterations=steps, **options), **job)
    equal(sorted(whole), list(range(1, steps + 1)), "steps of the uninterrupted run")
    for number, seen in enumerate(runs, 1):
        compare(seen, whole, f"run {number}")
    with Run(bed, config=CONFIG, settings={**saving, "trainer.train_iterations": steps}, **job) as run:
        equal(run.wait(300), 0, "exit code of the last run")
        last = losses(run)
    compare(last, whole, "last run")
    check(steps in last, "the last run did not reach the last step")
    verify = run_to_end(TRAINER, "checkpoint", "verify", checkpoints)
    equal(verify.returncode, 0, f"checkpoint verify ({verify.stdout}{verify.stderr})")


def wait_or_steps(run, seconds, steps):
    """Waits `seconds`, or until the run has done `steps`: a fast machine must not finish before the last kill."""
    deadline = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < deadline and len(losses(run)) < steps:
        time.sleep(0.002)


def compare(seen, whole, what):
    for step, loss in sorted(seen.items()):
        if loss != whole[step]:
            raise Failure(f"{what}: step {step} has loss {loss!r}, uninterrupted {whole[step]!r}")


def scenario_interrupted_then_resumed(bed):
    """Ctrl-C and the same command again."""
    checkpoints = bed.shared / "interrupted"
    shutil.rmtree(checkpoints, ignore_errors=True)
    options = settings(bed, trainer__train_iterations=ENDLESS, trainer__save_dir=checkpoints, trainer__save_interval=5,
                       **PATIENT)
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
        deadline = now() + 60 * PATIENCE
        while len(losses(run)) < 12:
            check(now() < deadline, "12 steps take more than 60 s")
            time.sleep(0.05)
        run.signal(signal.SIGINT)
        equal(run.wait(60), 130, "exit code")
        seen = losses(run)
        bed.expect_nothing_left(10)
    options["trainer.train_iterations"] = max(seen) + 50
    with Run(bed, config=CONFIG, settings=options, hosts="h[01-02]", slots=1) as run:
        equal(run.wait(200), 0, "exit code of the second run")
        again = losses(run)
    check(1 < min(again) <= max(seen) + 1, f"went on at step {min(again)} after step {max(seen)}")
    for step in set(seen) & set(again):
        equal(again[step], seen[step], f"loss of step {step}")


def scenario_killed_fork_goes_on_from_its_own_checkpoints(bed):
    """load_dir names another run's checkpoint: after a kill the same command resumes from save_dir, and reports it."""
    base, fork = bed.shared / "base", bed.shared / "fork"
    for folder in (base, fork):
        shutil.rmtree(folder, ignore_errors=True)
    job = {"hosts": "h[01-02]", "slots": 1}
    train(bed, settings=settings(bed, trainer__train_iterations=10, trainer__save_dir=base), **job)
    options = settings(bed, trainer__train_iterations=ENDLESS, trainer__save_interval=1, trainer__load_dir=base,
                       trainer__save_dir=fork, **PATIENT)
    with Run(bed, config=CONFIG, settings=options, **job) as run:
        ranks = run.wait_for_ranks(2, seconds=30)
        deadline = now() + 60 * PATIENCE
        while len(losses(run)) < 5:
            check(now() < deadline, "5 steps take more than 60 s")
            time.sleep(0.02)
        os.kill(ranks[0][1], signal.SIGKILL)
        equal(run.wait(60), 137, "exit code")
        seen = losses(run)
        run.expect(rf"forked from {base}/step-00000010 at step 10 \(trainer.load_dir\)")
        bed.expect_nothing_left(10)
    with Run(bed, config=CONFIG, settings={**options, "trainer.train_iterations": max(seen) + 20}, **job) as run:
        equal(run.wait(100), 0, "exit code of the same command")
        again = losses(run)
        run.expect(rf"resumed from {fork}/step-\d+ at step {min(again) - 1} \(the newest in trainer.save_dir;")
    # The survivor saves the state of the last complete step, which the killed rank 0 may not have reported.
    check(min(seen) == 11 and max(seen) - 1 <= min(again) <= max(seen) + 2, f"{sorted(seen)}, then {sorted(again)}")
    with Run(bed, config=CONFIG, settings={**options, "trainer.save_dir": base, "trainer.load_dir": fork}, **job) as run:
        equal(run.wait(60), 2, "exit code of a run in the folder of another one")
        run.expect(r"of a run that did not start from this one of step")
        run.expect_not(r"step +\d+/\d+")
        bed.expect_nothing_left(10)


def scenario_other_instruction_set_on_one_rank(bed):
    """Replicas on CPUs with different instruction sets differ in the last bits: refused before the first step."""
    wrapper = bed.shared / "narrow.sh"
    wrapper.write_text(f'#!/bin/sh\nif [ "$RANK" = 1 ]; then export ONEDNN_MAX_CPU_ISA=SSE41; fi\n'
                       f'exec {TRAINER} train --config {bed.shared}/narrow.toml\n')
    wrapper.chmod(0o755)
    tokens = build_tokens(bed)
    text = CONFIG.read_text()
    (bed.shared / "narrow.toml").write_text(f'{text}\n[data]\ndata_prefixes = ["{tokens}"]\n')
    (bed.shared / "narrow.toml").chmod(0o644)
    with Run(bed, wrapper, hosts="h[01-02]", slots=1) as run:
        equal(run.wait(60), 2, "exit code")
        run.expect(r"start-up check: instruction set differs: (\S+ on h01, sse41 on h02|sse41 on h02, \S+ on h01)")
        bed.expect_nothing_left(10)


def tensorboard_python():
    """Returns the Python of a virtual environment with the TensorBoard package, which is created once per build folder."""
    folder = BUILD / "tensorboard-venv"
    python = folder / "bin/python"
    if subprocess.run([python, "-c", "import tensorboard"], capture_output=True).returncode if python.exists() else 1:
        shutil.rmtree(folder, ignore_errors=True)
        run_to_end(sys.executable, "-m", "venv", folder, check=True, seconds=300)
        done = run_to_end(python, "-m", "pip", "install", "--quiet", "tensorboard", seconds=300)
        check(done.returncode == 0, f"pip install tensorboard, which this scenario needs: {done.stderr[-1000:]}")
    return python


def scenario_tensorboard_reads_the_events(bed):
    options = settings(bed, trainer__eval_interval=10, trainer__eval_samples=2,
                       data__validation_data_prefixes=f'["{build_tokens(bed)}"]')
    with Run(bed, config=CONFIG, hosts="h01", slots=1, settings=options) as run:
        equal(run.wait(60), 0, "exit code")
        metrics = run.metrics()
        read = run_to_end(tensorboard_python(), ROOT / "tests/e2e/tensorboard_scalars.py", run.folder_of_run() / "tensorboard", seconds=120)
    equal(read.returncode, 0, f"tensorboard_scalars.py ({read.stderr[-2000:]})")
    scalars = json.loads(read.stdout)
    for kind, prefix in (("step", "train"), ("eval", "validation")):
        events = [event for event in metrics if event["type"] == kind]
        check(events, f"no {kind} event in metrics.jsonl")
        for key, value in events[0].items():
            if key in ("step", "steps", "time") or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            expected = [[event["step"], as_f32(event[key])] for event in events]
            equal(scalars.get(f"{prefix}/{key}"), expected, f"{prefix}/{key}")
    equal([step for step, _ in scalars["train/loss"]], list(range(1, 21)), "steps of train/loss")


def as_f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def commands_to_go_on(text):
    """Returns (step, command) from the hint at the end of a run."""
    found = re.search(r"to resume from step (\d+):\n  (.+)", text)
    check(found, f"no command that goes on in {text[-2000:]}")
    return int(found.group(1)), found.group(2)


def scenario_readable_log(bed):
    """Step lines, validations and checkpoints on disk, in `logs` and on the screen; profiles in the run folder; the output of ps."""
    options = settings(bed, trainer__save_dir=bed.shared / "readable", trainer__save_interval=10, trainer__eval_interval=10,
                       data__validation_data_prefixes=f'["{build_tokens(bed)}"]',
                       profiler__profile_steps=2, profiler__profile_start_at_step=19, optimizer__allreduce_bucket_size=20000)
    shutil.rmtree(bed.shared / "readable", ignore_errors=True)
    with Run(bed, config=CONFIG, hosts="h01", slots=2, settings=options) as run:
        equal(run.wait(90), 0, "exit code")
        log = run.log(0).decode()
        for pattern in (r"training llama with .* parameters", r"step +1/20  loss +\d", r"step +20/20  loss +\d",
                        r"step +10  validation loss \d", r"step +10  checkpoint /", r"trained to step 20 of 20"):
            check(re.search(rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d  {pattern}", log, re.M), f"no {pattern!r} in {log}")
            run.expect(r"^\[0 h01\] \S+ \S+  " + pattern)
        check(not (run.folder_of_run() / "logs/rank-1.out").exists(), "rank 1 has a file for stdout, where it writes nothing")
        equal([event["text"] for event in run.metrics() if event["type"] == "note"],
              [f"no checkpoint in {bed.shared}/readable: initial weights from trainer.seed = 7"], "notes")
        asked = ["--log-dir", run.folder]
        shown = sortie("logs", *asked, run.id())
        check(all(line in shown for line in log.splitlines()), "`logs` does not show the log")
        of_ranks = []
        for rank in range(2):
            path = run.folder_of_run() / f"profile-rank-{rank}.json"
            trace = json.loads(path.read_text())["traceEvents"]
            equal({event["args"]["step"] for event in trace}, {19, 20}, "profiled steps")
            equal({event["pid"] for event in trace}, {rank}, "rank of the trace")
            reductions = [event for event in trace if event["name"] == "reduction"]
            equal({event["tid"] for event in reductions}, {1}, "row of the reductions")
            backward = max((event for event in trace if event["name"] == "backward" and event["args"]["step"] == 20), key=lambda event: event["ts"])
            first = min(event["ts"] for event in reductions if event["args"]["step"] == 20)
            check(backward["ts"] < first < backward["ts"] + backward["dur"], "no reduction began in the last backward pass")
            of_ranks.append([event["args"]["bytes"] for event in reductions])
            run.expect(f"profiles: .*{path}")
        equal(of_ranks[0], of_ranks[1], "bytes of the reductions of both ranks")
        run.expect(r"^last checkpoint: step 20, ")
        run.expect_not(r"to go on")
        listed = json.loads(sortie("ps", "--all", "--json", *asked))["runs"][0]
        equal(listed["name"], "tiny", "name")
        training = listed["training"]
        equal((training["step"], training["steps"], training["checkpoint"]["step"]), (20, 20, 20), "training in ps")
        equal(training["loss"], losses(run)[20], "loss in ps")
        check("20 of 20" in sortie("status", *asked, run.id()), "status does not know the step")
        check("20 of 20" in sortie("report", *asked, run.id()), "report does not know the step")
    rows = json.loads(run_to_end(TRAINER, "checkpoint", "ls", "--json", bed.shared / "readable", check=True).stdout)
    evals = [row["validation_loss"] for row in rows if row["validation_loss"] is not None]
    equal(len(evals), len(rows), "checkpoints with a validation loss")
    equal([row["best"] for row in rows].count(True), 1, "best checkpoints")
    equal(min(evals), next(row["validation_loss"] for row in rows if row["best"]), "loss of the best")


def sortie(*argv):
    done = run_to_end(SORTIE, *argv)
    equal(done.returncode, 0, f"exit code of {argv} ({done.stderr})")
    return done.stdout


def scenario_the_printed_command_goes_on(bed):
    """After SIGKILL of a rank, and of the supervisor: the printed command resumes from the step that it names."""
    save_dir = bed.shared / "goes-on"
    shutil.rmtree(save_dir, ignore_errors=True)
    options = settings(bed, trainer__save_dir=save_dir, trainer__save_interval=10, trainer__train_iterations=100000,
                       runner__grace="10s", runner__heartbeat_timeout="5s", runner__heartbeat_interval="500ms")
    with Run(bed, config=CONFIG, hosts="h01", slots=2, settings=options) as run:
        run.wait_for_text(r"step +10  checkpoint ", 60)
        os.kill(run.wait_for_ranks(2)[1][1], signal.SIGKILL)
        equal(run.wait(30), 137, "exit code")
        run.expect(r"^training ended at step \d+ of 100000, loss \d")
        first = run.folder_of_run()
        step, command = commands_to_go_on(run.text())
        check(step >= 10, f"step {step}")
        again = subprocess.Popen(["bash", "-c", "exec " + command], text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        try:
            second = wait_until(lambda: next((path for path in (run.folder / "runs").glob("2*") if path != first and (path / "metrics.jsonl").exists()), None), 30, "the second run")
            wait_until(lambda: any(e["type"] == "checkpoint" for e in whole_events(second / "metrics.jsonl")), 60, "its checkpoint")
            events = whole_events(second / "metrics.jsonl")
            equal(next(e for e in events if e["type"] == "step")["step"], step + 1, "first step")
            equal(json.loads((second / "run.json").read_text())["name"], "tiny", "name")
            os.kill(again.pid, signal.SIGKILL)
            bed.expect_nothing_left(20)
            attached = run_to_end(SORTIE, "attach", second)
            equal(attached.returncode, 5, "exit code of attach to a lost run")
            lost_step, lost_command = commands_to_go_on(attached.stderr)
            check(lost_step > step and str(second) in lost_command, attached.stderr)
            check(second.name not in sortie("ps", "--log-dir", run.folder), "a lost run is in plain ps")
            check(second.name in sortie("ps", "--all", "--log-dir", run.folder), "a lost run is not in ps --all")
        finally:
            if again.poll() is None:
                os.killpg(again.pid, signal.SIGKILL)
            again.wait()


def scenario_other_data_on_one_host(bed):
    """Ranks compare their training data before the first step; the message names the host that differs."""
    for host in HOSTS[:3]:
        text = "one text for all\n" if host != "h02" else "another text here\n"
        bed.run_in(host, "sh", "-c", f"mkdir -p /tmp/own; for i in 1 2 3 4 5 6 7 8; do yes '{text.strip()}' | head -c 100000"
                                     f" > /tmp/own/$i.txt; done; {TRAINER} data build --overwrite --tokenizer byte"
                                     " --output /tmp/own/tokens /tmp/own/*.txt")
    with Run(bed, config=CONFIG, hosts="h[01-03]", slots=1,
             settings={"data.data_prefixes": '["/tmp/own/tokens"]', "topology.global_batch_size": 6}) as run:
        check(run.wait(60) not in (0, 137, 139), "the job ran, or crashed")
        run.expect(r"h02")
        run.expect_not(r"^.*step .*loss")
        bed.expect_nothing_left(10)


def scenario_an_error_of_one_rank_ends_the_job(bed):
    """One rank reads an invalid token, while the other continues to the next step and waits for it."""
    for host in ("h01", "h02"):
        bed.run_in(host, "sh", "-c", f"mkdir -p /tmp/own; yes 'one text for all' | head -c 800000 > /tmp/own/text.txt; {TRAINER} data build"
                                     " --overwrite --tokenizer byte --output /tmp/own/tokens /tmp/own/text.txt;"
                                     " rm /tmp/own/tokens.json")  # it would name more ids than the model below has
    # Changes the data between the 64 blocks that the start-up check compares, so that the check passes.
    spoil = """
import os
size = os.path.getsize("/tmp/own/tokens.bin")
step = (size - 4096) // 63
with open("/tmp/own/tokens.bin", "r+b") as file:
    for block in range(63):
        file.seek(block * step + 4096)
        file.write(b"\\xff" * (step - 4096))
"""
    bed.run_in("h02", "/usr/bin/python3", "-c", spoil)
    with Run(bed, config=CONFIG, hosts="h[01-02]", slots=1,
             settings={"data.data_prefixes": '["/tmp/own/tokens"]', "model.vocab_size": 128, "trainer.train_iterations": 2000}) as run:
        equal(run.wait(60), 9, "exit code")
        run.expect(r"rank 1 on h02 .* failed with exit code 9")
        run.expect(r"/tmp/own/tokens")
        failed = [(event["rank"], event["code"]) for event in run.metrics() if event["type"] == "error"]
        equal(failed, [(1, "data")], "error events")
        bed.expect_nothing_left(10)


def scenario_memory_is_within_a_tenth_of_the_plan(bed):
    """The peak resident size of a rank, alone and as one of two, compared with the plan of its run."""
    shape = {"model__hidden_size": 512, "model__num_layers": 8, "model__num_attention_heads": 8, "model__vocab_size": 16000,
             "model__sequence_length": 256, "topology__micro_batch_size": 4, "trainer__threads": 2, "trainer__train_iterations": 3}
    for slots in (1, 2):
        with Run(bed, config=CONFIG, hosts="h01", slots=slots, settings=settings(bed, **shape)) as run:
            equal(run.wait(120), 0, "exit code")
            done = [event for event in run.metrics() if event["type"] == "done"][-1]
            plan = json.loads((run.folder_of_run() / "plan.json").read_text())["model"]["rank_memory_bytes"]["f32"]
        planned, measured = plan["total"], done["peak_memory_bytes"]
        print(f"{slots} ranks: planned {planned / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB", flush=True)
        check(measured > 500 * 2**20, f"a model too small to tell: {measured} bytes")
        check(SANITIZED or abs(planned - measured) <= 0.1 * measured, f"planned {plan}, measured {done['memory']}")


def scenario_quickstart_in_bf16_ends_within_1_percent_of_f32(bed):
    """The quickstart's own config with few steps and a third of its learning rate: at the full rate, different roundings make two runs
    diverge by chance within so few steps. docs/benchmarks.md has the result of the whole quickstart."""
    steps, share = (120, 0.6) if EVERY else (60, 0.75)
    options = {"trainer__train_iterations": steps, "trainer__train_duration": "0s", "trainer__save_dir": '""', "trainer__save_interval": 0, "trainer__eval_interval": steps,
               "learning_rate_scheduler__learning_rate": 1e-3, "learning_rate_scheduler__learning_rate_minimum": 1e-4,
               "data__validation_data_prefixes": f'["{build_tokens(bed)}"]'}
    ends = {}
    for precision in ("f32", "bf16"):
        with Run(bed, config=ROOT / "configs/quickstart.toml", hosts="h01", slots=2,
                 settings=settings(bed, model__precision=precision, **options)) as run:
            code = run.wait(300)
            if precision == "bf16" and "bf16" not in multiplied_here():
                check(code != 0 and "bf16" in run.text(), f"a CPU without bf16 products ended with {code}")
                return
            equal(code, 0, "exit code")
            ends[precision] = [event["loss"] for event in run.metrics() if event["type"] == "eval"][-1]
            first = losses(run)[1]
    check(ends["f32"] < share * first, f"little was learned: {first} -> {ends['f32']}")
    ratio = ends["bf16"] / ends["f32"]
    print(f"validation loss after {steps} steps: {ends}, bf16 / f32 {ratio:.4f}", flush=True)
    check(abs(ratio - 1) <= 0.01, f"bf16 ends at {ends['bf16']}, f32 at {ends['f32']}")


def multiplied_here():
    """Returns the flags of this CPU for bf16 products in hardware."""
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    return " ".join(flag for flag in flags if flag in ("avx512_bf16", "amx_bf16"))
