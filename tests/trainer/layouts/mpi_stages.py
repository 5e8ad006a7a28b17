#!/usr/bin/env python3
"""mpi_stages.py SORTIE_TRAIN: compares MPI ranks under mpirun that are pipelines, share sequences, or keep shares of the weights, with one process:
the losses that they print and the state that they save."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SECONDS = 120  # enough on a busy machine; a deadlock never ends
TRAINER = str(pathlib.Path(sys.argv[1]).resolve())
STEPS = 6

CONFIG = """
[topology]
micro_batch_size = 2
global_batch_size = 16
{topology}
[learning_rate_scheduler]
learning_rate = 1e-3
[data]
data_prefixes = ["{folder}/tokens"]
[trainer]
train_iterations = {steps}
threads = 1
save_dir = "{folder}/{save_dir}"
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 64
num_layers = 4
num_attention_heads = 4
attention_num_kv_heads = 2
sequence_length = 64
precision = "f32"
"""
LAYOUTS = {  # ranks, keys
    "one": (1, ""),
    "interleaved": (4, "pipeline_parallel_size = 2\npipeline_interleave = 2"),
    "shared sequences": (4, "context_parallel_size = 4"),
}
if os.environ.get("SORTIE_EVERY_CASE"):
    LAYOUTS["stages"] = (2, "pipeline_parallel_size = 2")
    LAYOUTS["gathered layers"] = (2, 'parameter_sharding = "full"')
    LAYOUTS["gathered stages"] = (4, 'pipeline_parallel_size = 2\nparameter_sharding = "full"')
    LAYOUTS["a layer each"] = (4, "pipeline_parallel_size = 4")


def as_rank():
    os.environ |= {"RANK": os.environ["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"]}
    os.execv(TRAINER, [TRAINER, "train", "--config", "job.toml"])


def train(folder, layout, save_dir, steps):
    """Trains a job and returns the losses that it prints, by step."""
    ranks, topology = LAYOUTS[layout]
    (folder / "job.toml").write_text(CONFIG.format(folder=folder, topology=topology, save_dir=save_dir, steps=steps))
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "btl", "self,vader",
               "--mca", "mpi_yield_when_idle", "1", sys.executable, __file__, TRAINER, "--rank"]
    job = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    if job.returncode:
        sys.exit(f"{layout} ended with {job.returncode}\n{job.stdout[-2000:]}\n{job.stderr[-2000:]}")
    losses = {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)/\d+ +loss +([0-9.]+)", job.stdout)}
    end = re.search(r"trained to step (\d+) of \d+ .*loss ([0-9.]+),", job.stdout)
    return losses | {int(end[1]): float(end[2])}


def check(what, seen, alone, steps):
    """Compares losses, which have five digits, at common steps. The log has at most one line per second, but always the last step."""
    print(what, seen)
    common = seen.keys() & alone.keys()
    if steps not in common or any(abs(seen[step] - alone[step]) > 2e-4 for step in common):
        sys.exit(f"{what}: {seen}, one process: {alone}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"line {i} has {i * i % 97} words\n" for i in range(3000)))
        subprocess.run([TRAINER, "data", "build", "--tokenizer", "byte", "--output", folder / "tokens", folder / "text.txt"],
                       check=True, capture_output=True, timeout=SECONDS)
        losses = {layout: train(folder, layout, layout, STEPS) for layout in LAYOUTS}
        for layout, seen in losses.items():
            check(layout, seen, losses["one"], STEPS)
        # One process resumes from what each layout has saved.
        further = {layout: train(folder, "one", layout, STEPS + 2) for layout in LAYOUTS}
        for layout, seen in further.items():
            check(f"from {layout}", seen, further["one"], STEPS + 2)


if sys.argv[2:] == ["--rank"]:
    as_rank()
else:
    main()
