#!/usr/bin/env python3
"""mixed_devices.py SORTIE SORTIE_TRAIN MODULE: ranks with trainer.device = "auto", one of which has no GPU while the others have emulated
ones. The job must end at once with one error that names rank, host and reason: under `sortie run`, under mpirun, and started by hand."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from free_port import free_port

SECONDS = 60 * float(os.environ.get("SORTIE_TEST_PATIENCE", 1))  # enough on a busy machine; without the check ranks wait for 30 minutes
SORTIE, TRAINER, MODULE = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:4])
RANKS = 3

CONFIG = """
[topology]
micro_batch_size = 1
global_batch_size = 3
[learning_rate_scheduler]
learning_rate = 1e-3
[data]
data_prefixes = ["{folder}/tokens"]
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
num_layers = 1
num_attention_heads = 2
attention_num_kv_heads = 2
sequence_length = 16
precision = "auto"
[trainer]
train_iterations = 2
threads = 1
"""


def as_rank(folder, lacking, way):
    """Executes the trainer. Rank `lacking` has no GPU: it has no module, no driver, or another process has its GPU ("taken")."""
    variables = os.environ
    if "RANK" not in variables:
        variables |= {"RANK": variables["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": variables["OMPI_COMM_WORLD_SIZE"],
                      "LOCAL_RANK": variables["OMPI_COMM_WORLD_LOCAL_RANK"], "LOCAL_WORLD_SIZE": variables["OMPI_COMM_WORLD_SIZE"]}
    variables["SORTIE_CUDA_MODULE"] = MODULE
    if variables["RANK"] == lacking:
        variables |= {"no module": {"SORTIE_CUDA_MODULE": "/nowhere/libsortie-cuda.so"}, "no driver": {"SORTIE_EMULATED_DRIVER": "0"},
                      "taken": {"SORTIE_EMULATED_GPUS_TAKEN": variables["LOCAL_RANK"]}}[way]
    os.execv(TRAINER, [TRAINER, "train", f"{folder}/job.toml"])


def start(launcher, folder, lacking, way):
    """Returns the processes of the job: the launcher, or the ranks."""
    command = [sys.executable, __file__, *sys.argv[1:4], "--rank", folder, str(lacking), way]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SORTIE_CUDA")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder}
    if launcher == "sortie":
        job = [SORTIE, "run", "--set", f'runner.hosts=["localhost slots={RANKS}"]', "--set", "runner.mpi=off",
               "--set", f"logger.log_dir={folder}/state", "--", *command]
        return [subprocess.Popen(job, env=environment | {"XDG_STATE_HOME": folder}, **pipes)]
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    if launcher == "mpirun":
        job = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), "--mca", "btl", "self,vader", *command]
        return [subprocess.Popen(job, env=environment, **pipes)]
    return [subprocess.Popen(command, env=environment | {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank),
                                                         "LOCAL_WORLD_SIZE": str(RANKS)}, **pipes)
            for rank in range(RANKS)]


def run(launcher, folder, lacking=-1, way="none"):
    """Returns the exit codes and the output of all processes."""
    begin = time.monotonic()
    processes = start(launcher, folder, lacking, way)
    codes, said = [], ""
    for process in processes:
        try:
            said += process.communicate(timeout=max(1.0, begin + SECONDS - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            for one in processes:
                one.terminate()
            outputs = [one.communicate()[0][-3000:] for one in processes]
            sys.exit(f"{launcher}, rank {lacking}: the job still ran after {SECONDS} s\n" + "\n".join(outputs))
        codes.append(process.returncode)
    print(f"{launcher}, rank {lacking} {way}: {codes} after {time.monotonic() - begin:.1f} s", flush=True)
    return codes, said


REASONS = {"no module": "/nowhere/libsortie-cuda.so: can not be loaded: ", "no driver": "no NVIDIA driver is loaded; install one",
           "taken": "GPU {rank} can not be used: CUDA-capable device(s) is/are busy or unavailable "}


def check_refused(launcher, folder, lacking, way):
    codes, said = run(launcher, folder, lacking, way)
    others = {0: "1-2", 1: "0,2", 2: "0-1"}[lacking]
    reason = 'trainer.device = "auto": ' + REASONS[way].format(rank=lacking)
    parts = [f"start-up check: device differs: cpu on rank {lacking} (", f"emulated GPU (9.0) on ranks {others} (",
             f"; rank {lacking} (", f"no GPU: {reason}", f"computes on the CPU: {reason}", 'or set trainer.device = "cpu" to train without GPUs']
    wrong = [part for part in parts if part not in said]
    # `sortie run` repeats the last lines of the rank that failed first, indented.
    errors = [line for line in said.splitlines() if "sortie-train: " in line and "device differs" in line and not line.startswith("    ")]
    if any(code != 3 for code in codes) or wrong or len(errors) != 1 or "communication between ranks" in said:
        sys.exit(f"{launcher}, rank {lacking} {way}: exit codes {codes}; missing: {wrong}; {len(errors)} errors\n{said}")


def check_trains(launcher, folder):
    codes, said = run(launcher, folder)
    if any(codes) or "on the CPU" in said:
        sys.exit(f"{launcher}: ranks with a GPU each: exit codes {codes}\n{said}")


def main():
    if sys.argv[4:5] == ["--rank"]:
        as_rank(*sys.argv[5:8])
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
        subprocess.run([TRAINER, "data", "build", "--tokenizer", "byte", "--output", f"{folder}/tokens", f"{folder}/text.txt"],
                       check=True, capture_output=True, timeout=SECONDS)
        pathlib.Path(folder, "job.toml").write_text(CONFIG.format(folder=folder))
        check_refused("sortie", folder, 1, "no module")
        check_refused("sortie", folder, 0, "taken")
        check_refused("mpirun", folder, 2, "taken")
        check_refused("hand", folder, 0, "no driver")
        for launcher in ("sortie", "mpirun", "hand"):
            check_trains(launcher, folder)
    print("ok")


main()
