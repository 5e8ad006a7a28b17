#!/usr/bin/env python3
"""failing_rank.py SORTIE_TRAIN: two MPI ranks under mpirun, one of which fails while the other waits for it in a collective.
The job must end at once, with the exit code and the message of the rank that failed."""
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

SECONDS = 90  # enough on a busy machine; a deadlock never ends
SANITIZED = float(os.environ.get("SORTIE_TEST_PATIENCE", 1)) > 1
TRAINER = str(pathlib.Path(sys.argv[1]).resolve())

CONFIG = """
[topology]
micro_batch_size = {rows}
global_batch_size = {batch}
[learning_rate_scheduler]
learning_rate = 1e-3
[data]
data_prefixes = ["{tokens}"]
[model]
architecture = "llama"
vocab_size = 128
hidden_size = 64
num_layers = 2
num_attention_heads = 4
attention_num_kv_heads = 2
sequence_length = {length}
precision = "f32"
[trainer]
train_iterations = {steps}
threads = 1
{more}
"""


def build(folder, text):
    (folder / "text.txt").write_text(text)
    subprocess.run([TRAINER, "data", "build", "--tokenizer", "byte", "--output", folder / "tokens", folder / "text.txt"],
                   check=True, capture_output=True, timeout=SECONDS)
    return folder / "tokens"


def as_rank(memory):
    """Executes the trainer as the rank that Open MPI's environment names. Rank 1 gets an address space of `memory` bytes."""
    os.environ |= {"RANK": os.environ["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"]}
    if memory and os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    os.execv(TRAINER, [TRAINER, "train", "--config", "job.toml"])


def run(folder, memory=0, **config):
    (folder / "job.toml").write_text(CONFIG.format(**({"rows": 1, "batch": 2, "length": 64, "steps": 200, "more": ""} | config)))
    begin = time.monotonic()
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--mca", "btl", "self,vader",
               sys.executable, __file__, TRAINER, "--rank", str(memory)]
    job = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = job.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        job.terminate()  # mpirun then ends its ranks
        out, err = job.communicate(timeout=SECONDS)
        sys.exit(f"the job still ran after {SECONDS} s\n--- stdout\n{out[-2000:]}\n--- stderr\n{err}")
    return job.returncode, out, err, time.monotonic() - begin


def check(name, outcome, code, *parts):
    returned, out, err, seconds = outcome
    wrong = [part for part in parts if part not in err]
    if returned != code or wrong:
        sys.exit(f"{name}: exit code {returned}, expected {code}; not on stderr: {wrong}\n--- stdout\n{out}\n--- stderr\n{err}")
    print(f"{name}: ended with {returned} after {seconds:.1f} s", flush=True)


def main():
    if sys.argv[2:3] == ["--rank"]:
        as_rank(int(sys.argv[3]))
    plain = "The quick brown fox jumps over the lazy dog. " * 4000
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # All ids are in the vocabulary, except for one character, which one rank reads in one step.
        middle = len(plain) // 2
        tokens = build(folder, plain[:middle] + "\u00e9" + plain[middle:])
        refused = run(folder, tokens=tokens)
        check("a token that the manifest names", refused, 2, f"model.vocab_size: it is 128, but {tokens} (data.data_prefixes) has token 195")
        (folder / "tokens.json").unlink()  # as files of other tools
        outcome = run(folder, tokens=tokens, steps=2000)
        check("a bad token", outcome, 9, "is outside the vocabulary of 128", "sortie-train: rank ")
        if "sortie-train: rank 0 on" in outcome[2] and "sortie-train: rank 1 on" in outcome[2]:
            sys.exit(f"both ranks read the bad token, so nothing was tested:\n{outcome[2]}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokens = build(folder, plain)
        more = f'[profiler]\nprofile_steps = 1\nprofiler_output = "{folder}/nowhere/trace.json"'
        refused = run(folder, tokens=tokens, more=more)
        check("a profile that can not be written", refused, 9, "sortie-train: rank 0 on",
              f": profiler.profiler_output: {folder}/nowhere/trace-rank-0.json can not be written: No such file or directory; ")
        if refused[2].count("profiler.profiler_output") != 1 or ".check-" in refused[2]:
            sys.exit(f"the error is not said once, by its file's name:\n{refused[2]}")
        (folder / "file").write_text("")
        refused = run(folder, tokens=tokens, more=f'save_dir = "{folder}/file"')
        check("a save_dir that is a file", refused, 9, "sortie-train: rank 0 on", f"trainer.save_dir: create {folder}/file")
        if refused[2].count("trainer.save_dir") != 1:
            sys.exit(f"the error is not said once, by the rank that had it:\n{refused[2]}")
        if SANITIZED:  # a sanitizer reserves terabytes of addresses
            print("lack of memory: left out, a sanitizer does not start with a limit of the address space", flush=True)
            return
        outcome = run(folder, tokens=tokens, rows=64, batch=128, length=1024, memory=1 << 30)
        check("lack of memory", outcome, 3, "sortie-train: rank 1 on", "out of memory: the system gave no ")


main()
