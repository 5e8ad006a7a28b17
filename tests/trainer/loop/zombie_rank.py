#!/usr/bin/env python3
"""zombie_rank.py SORTIE_TRAIN: a rank that is stopped while a later attempt of its run takes its place wakes up and commits
nothing. Real processes, as a runner starts them, on one host, so the stopped one still holds the lock of the folder."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 90  # enough on a busy machine; a deadlock never ends
TRAINER = str(pathlib.Path(sys.argv[1]).resolve())

CONFIG = """
[topology]
micro_batch_size = 1
global_batch_size = 2
[learning_rate_scheduler]
learning_rate = 1e-3
learning_rate_decay_style = "constant"
[data]
data_prefixes = ["{folder}/tokens"]
[trainer]
train_iterations = {steps}
threads = 1
save_dir = "{folder}/saved"
save_interval = 2
keep_last = 0
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
num_layers = 1
num_attention_heads = 2
sequence_length = 32
precision = "f32"
"""


def attempt(folder, number, steps):
    config = folder / f"job-{number}.toml"
    config.write_text(CONFIG.format(folder=folder, steps=steps))
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "SORTIE_RUN_ID": "run-of-two", "SORTIE_ATTEMPT": str(number)}
    return subprocess.Popen([TRAINER, "train", "--config", config], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def saved_steps(folder):
    return sorted(int(path.name[5:]) for path in (folder / "saved").glob("step-*") if (path / "COMMIT").exists())


def wait_until(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"after {SECONDS} s still not: {what}")
        time.sleep(0.01)


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def check(good, what):
    if not good:
        sys.exit(what)


def manifests(folder):
    return {step: json.loads((folder / f"saved/step-{step:08}/manifest.json").read_text()) for step in saved_steps(folder)}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
        subprocess.run([TRAINER, "data", "build", "--tokenizer", "byte", "--output", folder / "tokens", folder / "text.txt"],
                       check=True, capture_output=True, timeout=SECONDS)
        first = attempt(folder, 1, 10_000_000)
        try:
            wait_until(lambda: len(saved_steps(folder)) >= 2, "two checkpoints of the first attempt")
            os.kill(first.pid, signal.SIGSTOP)
            wait_until(lambda: state_of(first.pid) == "T", "the first attempt stands still")
            stopped_at = saved_steps(folder)[-1]
            second = attempt(folder, 2, stopped_at + 10)
            out, err = second.communicate(timeout=SECONDS)
            check(second.returncode == 0, f"attempt 2 ended with {second.returncode}\n{out}\n{err}")
            left = manifests(folder)
            check(max(left) == stopped_at + 10, f"attempt 2 left {sorted(left)}")
            os.kill(first.pid, signal.SIGCONT)
            out, err = first.communicate(timeout=SECONDS)
        finally:
            if first.poll() is None:
                first.kill()
        check(first.returncode == 8, f"attempt 1 ended with {first.returncode} after it woke up\n{out[-3000:]}\n{err[-3000:]}")
        check("it now belongs to run run-of-two, attempt 2, pid " in err and "this is run run-of-two, attempt 1" in err, err[-3000:])
        check(manifests(folder) == left, f"attempt 1 committed or removed something: {sorted(left)}, then {saved_steps(folder)}")
        print(f"stopped after step {stopped_at}; woken up after attempt 2 had done step {max(left)}; ended with 8")
        third = attempt(folder, 1, stopped_at + 20)
        out, err = third.communicate(timeout=SECONDS)
        check(third.returncode == 8 and "must not commit there" in err, f"attempt 1 again: {third.returncode}\n{err}")


main()
