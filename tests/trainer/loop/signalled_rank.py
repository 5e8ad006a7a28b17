#!/usr/bin/env python3
"""signalled_rank.py SORTIE_TRAIN: a rank of two threads that gets SIGUSR1 thousands of times a second. It saves at its steps, reaches
its end, and has the loss of a rank that got no signal: signals interrupt products, whose kernels use the stack in their own way."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 90  # enough on a busy machine
TRAINER = str(pathlib.Path(sys.argv[1]).resolve())

CONFIG = """
[topology]
micro_batch_size = 4
global_batch_size = 4
[learning_rate_scheduler]
learning_rate = 1e-3
[data]
data_prefixes = ["tokens"]
[trainer]
train_iterations = 150
threads = 2
save_dir = "{save_dir}"
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 64
num_layers = 2
num_attention_heads = 4
sequence_length = 64
precision = "f32"
"""


def takes(pid, number):
    """Returns whether the process already ignores or handles the signal."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status, re.M)]
    return any(mask >> (number - 1) & 1 for mask in masks)


def train(folder, save_dir, signals):
    (folder / "job.toml").write_text(CONFIG.format(save_dir=save_dir))
    with open(folder / "output", "w+") as output:
        rank = subprocess.Popen([TRAINER, "train", "--config", "job.toml"], cwd=folder, stdout=output, stderr=output)
        taken, sent, end = False, 0, time.monotonic() + SECONDS
        try:
            while rank.poll() is None and time.monotonic() < end:
                if not taken and takes(rank.pid, signal.SIGUSR1):
                    taken = True
                    shown = pathlib.Path(f"/proc/{rank.pid}/comm").read_text().strip()
                    if shown != "sortie-train":  # it starts itself anew first
                        sys.exit(f"ps and pkill know the rank as {shown}")
                if signals and taken:
                    os.kill(rank.pid, signal.SIGUSR1)
                    sent += 1
                time.sleep(0.0002 if signals else 0.01)
        finally:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
        output.seek(0)
        text = output.read()
    if rank.returncode != 0:
        sys.exit(f"exit code {rank.returncode} after {sent} signals:\n{text[-3000:]}")
    return text, sent


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("the same words again and again, and some others\n" * 400)
        subprocess.run([TRAINER, "data", "build", "--tokenizer", "byte", "--output", "tokens", "text.txt"], cwd=folder,
                       check=True, capture_output=True, timeout=SECONDS)
        last = re.compile(r"trained to step 150 of 150 in .*, (loss [0-9.]+)")
        quiet, _ = train(folder, "quiet", signals=False)
        text, sent = train(folder, "saves", signals=True)
        losses = [last.search(one).group(1) for one in (quiet, text)]
        saves = text.count("checkpoint saves/step-") + text.count(f"checkpoint {folder}/saves/step-")
        print(f"{sent} signals, {saves} saves, {' and '.join(losses)}")
        if losses[0] != losses[1]:
            sys.exit(f"another loss than without signals: {losses}")
        if sent < 300 or saves < 10:
            sys.exit(f"the signals asked for nothing:\n{text[-2000:]}")


if __name__ == "__main__":
    main()
