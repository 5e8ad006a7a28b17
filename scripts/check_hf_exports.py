#!/usr/bin/env python3
"""Checks the results of sortie-train import and export with transformers: they must load there, and be the same models.

  scripts/check_hf_exports.py [NAME...]        (sortie-train of build/release/bin unless --sortie-train names another)

Trains every family for a step and exports it; imports and exports every folder of tests/data/hf: in one file and in
shards, in its own type and in bf16, DeepSeek-V3 also --with-mtp. An export passes if transformers loads it without missing,
unexpected or misshapen tensors, log messages and warnings; if its logits are those of `sortie-train probe` on the export and
on its source; and if the folder that transformers saves of that model, sharded and in bf16, has the same bytes in every
tensor after import and export. "text" compares the text that sortie-train generate writes.

torch and transformers are those of make_hf_fixtures.py, in its virtual environment (build/hf-venv, or --venv).
"""

import argparse
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

from make_hf_fixtures import CASES, ROOT, check_versions, enter_environment

TRAINING = """
[topology]
micro_batch_size = 1
global_batch_size = 1
[learning_rate_scheduler]
learning_rate = 1e-2
[trainer]
train_iterations = 1
save_interval = 1
save_dir = "{out}/checkpoint"
threads = 1
[data]
tokenizer = "byte"
data_prefixes = ["{data}"]
[model]
architecture = "{architecture}"
vocab_size = 259
hidden_size = 32
num_layers = 3
num_attention_heads = 4
sequence_length = 24
init_std = 0.2
precision = "f32"
{model}
"""
EXPERTS = "[model.moe]\nnum_experts = 6\ntopk = 2\nffn_hidden_size = 20\n"
GROUPS = EXPERTS + "num_shared_experts = 1\nfirst_dense_layers = 1\nnum_groups = 3\ngroup_topk = 2\nbias_update_rate = 0.01\n"
LATENT = "[model.mla]\nkv_lora_rank = 16\nqk_nope_head_dim = 8\nqk_rope_head_dim = 6\nv_head_dim = 10\n"
PREDICTION = "[model.mtp]\nnum_layers = {}\n"

# Models that are trained here: architecture, the rest of [model].
TRAINED = {
    "gpt2": ("gpt2", "weight_tying = true"),
    "gpt2-untied": ("gpt2", "weight_tying = false"),
    "gpt-neo": ("gpt-neo", 'attention_window = 5\nattention_layers = ["global", "local", "local"]'),
    "gpt-neo-x": ("gpt-neo-x", "rotary_percentage = 0.5"),
    "gpt-neo-x-sequential": ("gpt-neo-x", "rotary_percentage = 0.25\nparallel_residual = false"),
    "llama": ("llama", "attention_num_kv_heads = 2"),
    "llama-scaled": ("llama", 'weight_tying = true\nhead_dim = 10\nrope_scaling = "llama3"\nrope_scaling_original_length = 12'),
    "mistral": ("mistral", "attention_window = 7\nattention_num_kv_heads = 1"),
    "qwen2": ("qwen2", 'attention_num_kv_heads = 2\nattention_window = 5\nattention_layers = ["global", "local", "local"]'),
    "qwen3": ("qwen3", "head_dim = 12\nattention_num_kv_heads = 2\nweight_tying = true"),
    "mixtral": ("mixtral", "attention_num_kv_heads = 2\n[model.moe]\nnum_experts = 6\ntopk = 2\naux_loss_coeff = 0.01"),
    "qwen3-moe": ("qwen3-moe", "head_dim = 12\nattention_num_kv_heads = 2\n" + EXPERTS + "layer_step = 2\n"),
    "deepseek-v3": ("deepseek-v3", GROUPS + LATENT + "q_lora_rank = 20\n"),
    "deepseek-v3-no-q-lora": ("deepseek-v3", GROUPS + LATENT),
    "deepseek-v3-mtp": ("deepseek-v3", GROUPS + LATENT + "q_lora_rank = 20\n" + PREDICTION.format(2)),
    "deepseek-v3-mtp-tied": ("deepseek-v3", "weight_tying = true\n" + EXPERTS + "num_shared_experts = 1\n" + LATENT + PREDICTION.format(1)),
}


def as_version_4(config):
    """A config.json in the spelling of transformers 4."""
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.49.0"
    config.pop("layer_types", None)
    if "num_local_experts" in config and config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    rope = config.pop("rope_parameters", None)
    if rope is None:
        return config
    neox = config["model_type"] == "gpt_neox"
    config["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
    if config["model_type"] == "deepseek_v3":
        rope["type"] = rope.pop("rope_type")  # as in DeepSeek's own files
    config["rope_scaling"] = rope if len(rope) > 1 else None
    return config


class Failed(Exception):
    pass


def expect(good, *words):
    if not good:
        raise Failed(" ".join(str(w) for w in words))


class Loaded:
    """A folder loaded by transformers, with all messages and warnings of loading and generation."""

    def __init__(self, folder):
        import torch
        import transformers

        records = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: records.append(record.getMessage())
        logging.getLogger().addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.model, self.info = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, dtype="auto", output_loading_info=True, experts_implementation="eager")  # other implementations restrict the sizes
                self.model.eval()
                tokens = torch.tensor([[3, 1, 4, 1, 5]])
                self.model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=3)
        finally:
            logging.getLogger().removeHandler(handler)
        self.said = records + [f"{w.category.__name__}: {w.message}" for w in caught]

    def check(self, allowed=lambda name: False):
        """Fails if transformers reported a problem. `allowed`: whether it may report a name as unexpected."""
        unexpected = [name for name in self.info["unexpected_keys"] if not allowed(name)]
        for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
            expect(not self.info.get(kind), kind, self.info.get(kind))
        expect(not unexpected, "unexpected_keys", unexpected)
        reported = len(unexpected) != len(self.info["unexpected_keys"])
        expect(reported or not self.said, "it says:", *self.said)

    def logits(self, tokens):
        import torch

        with torch.no_grad():
            return self.model.float()(torch.tensor(tokens), use_cache=False).logits


def tensors_of(folder):
    """Returns {name: (type, shape, bytes)} of all tensors in the files of a folder."""
    import torch
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                tensor = opened.get_tensor(name)
                found[name] = (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else tensor.item())
    return found


def same_tensors(a, b):
    expect(a.keys() == b.keys(), "other names:", sorted(a.keys() ^ b.keys()))
    differing = [name for name in a if a[name] != b[name]]
    expect(not differing, "other bytes:", differing)


class Bench:
    def __init__(self, program, work):
        self.program, self.work = program, work

    def sortie(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        expect(done.returncode == 0, "sortie-train", *arguments, "failed:", done.stderr.strip()[-2000:])

    def new(self, name):
        """Returns a path in the work folder; removes what is there."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        return self.work / name

    def probe(self, model, tokens):
        from safetensors.torch import load_file

        (self.work / "ids.json").write_text(json.dumps({"input_ids": tokens}))
        out = self.work / "probe.safetensors"
        out.unlink(missing_ok=True)
        self.sortie("probe", model, "--tokens", self.work / "ids.json", "--out", out)
        return load_file(out)["logits"]

    def check_export(self, checkpoint, *options, mtp_from=None):
        """Exports the checkpoint: transformers must load the export and compute the same logits as sortie-train."""
        folder = self.new("export")
        self.sortie("export", checkpoint, folder, *options)
        if "--max-shard-gb" in options:
            expect(len(list(folder.glob("model-*.safetensors"))) > 1, "one shard only")
        loaded = Loaded(folder)
        # transformers has no MTP layers and may report their tensors as unexpected, but no others.
        loaded.check(lambda name: mtp_from is not None and any(name.startswith(f"model.layers.{mtp_from + k}.") for k in range(4)))
        vocab = loaded.model.config.vocab_size
        tokens = [[(7 * i * i + 3 * row) % vocab for i in range(11)] for row in range(2)]
        theirs = loaded.logits(tokens)
        for model in (folder, checkpoint) if "--dtype" not in options else (folder,):
            ours = self.probe(model, tokens)
            apart = ((ours - theirs).abs().max() / theirs.pow(2).mean().sqrt()).item()
            expect(apart <= 1e-4, f"logits of {model.name} are {apart:.2e} of their rms apart")
        if mtp_from is not None:
            names = tensors_of(folder)
            for part in ("embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head"):
                expect(f"model.layers.{mtp_from}.{part}.weight" in names, "no", part)
        return folder, loaded.model

    def check_their_folder(self, model, shard_bytes):
        """The folder that transformers saves of the model, sharded and in bf16, has the same bytes after import and export."""
        import torch

        theirs, again, checkpoint = self.new("theirs"), self.new("again"), self.new("imported")
        model.to(torch.bfloat16).save_pretrained(theirs, max_shard_size=shard_bytes)
        expect((theirs / "model.safetensors.index.json").exists(), "transformers wrote one file")
        self.sortie("import", theirs, checkpoint)
        self.sortie("export", checkpoint, again, "--max-shard-gb", shard_bytes * 1e-9)
        same_tensors(tensors_of(theirs), tensors_of(again))
        Loaded(again).check()

    def check_model(self, checkpoint, mtp=False):
        folder, model = self.check_export(checkpoint)
        size = (folder / "model.safetensors").stat().st_size
        layers = json.loads((folder / "config.json").read_text()).get("num_hidden_layers")
        self.check_export(checkpoint, "--max-shard-gb", size * 0.4e-9)
        self.check_export(checkpoint, "--dtype", "bf16", "--max-shard-gb", size * 0.2e-9)
        if mtp:
            self.check_export(checkpoint, "--with-mtp", mtp_from=layers)
            # With its MTP layers a folder is complete after import and export.
            self.sortie("import", self.work / "export", self.work / "with-mtp")
            before = tensors_of(self.work / "export")
            self.check_export(self.work / "with-mtp", "--with-mtp", mtp_from=layers)
            same_tensors(before, tensors_of(self.work / "export"))
        self.check_their_folder(model, int(size * 0.2))

    def check_trained(self, name):
        architecture, model = TRAINED[name]
        (self.work / "text.txt").write_text((ROOT / "README.md").read_text())
        self.sortie("data", "build", "--tokenizer", "byte", "--overwrite", "--output", self.work / "tokens", self.work / "text.txt")
        config = self.work / "config.toml"
        config.write_text(TRAINING.format(out=self.work, data=self.work / "tokens", architecture=architecture, model=model))
        self.sortie("train", "--config", config)
        self.check_model(self.work / "checkpoint", mtp="[model.mtp]" in model)

    def check_fixture(self, name):
        folder = ROOT / "tests" / "data" / "hf" / name
        self.sortie("import", folder, self.work / "checkpoint")
        self.check_model(self.work / "checkpoint")
        exported = self.work / "plain"
        self.sortie("export", self.work / "checkpoint", exported)
        same_tensors(tensors_of(folder), tensors_of(exported))
        # The same model with the config.json of transformers 4.
        old = self.work / "version-4"
        shutil.copytree(folder, old)
        config = json.loads((folder / "config.json").read_text())
        (old / "config.json").write_text(json.dumps(as_version_4(config)))
        self.sortie("import", old, self.work / "imported-4")
        self.check_export(self.work / "imported-4")


    def check_text(self):
        """Compares the text of sortie-train generate from a folder with a tokenizer, with special tokens and stop tokens."""
        import torch
        import transformers

        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "tests" / "data" / "tokenizer" / "llama3.json"))
        torch.manual_seed(5)
        config = transformers.LlamaConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                          vocab_size=len(tokenizer), max_position_embeddings=128, bos_token_id=None, eos_token_id=None)
        model = transformers.LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.4)
        prompt = "The licence of 2024, d\u00e9j\u00e0 vu;\n\n  for (int i"
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        expect(tokenizer.decode(inputs["input_ids"][0, :1]) == "<|begin_of_text|>", "the tokenizer adds no special token")
        options = dict(do_sample=False, max_new_tokens=40, pad_token_id=0)
        free = model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1]:].tolist()
        expect(len(set(free)) > 5, "the text says little:", free)
        stop = next(t for i, t in enumerate(free) if i > 12 and t not in free[:i])
        for name, ends in (("no-stop", None), ("stop", [len(tokenizer) - 1, stop])):
            folder, checkpoint, exported = self.new(name), self.new(name + "-checkpoint"), self.new(name + "-export")
            model.generation_config.eos_token_id = ends
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            self.sortie("import", folder, checkpoint)
            said = subprocess.run([self.program, "generate", "--checkpoint", checkpoint, "--prompt", prompt, "--temperature", "0", "--max-tokens", "40"],
                                  capture_output=True, check=True).stdout.decode()
            want = tokenizer.decode(free if ends is None else free[: free.index(stop)], skip_special_tokens=True)
            expect(said == prompt + want + "\n", name, repr(said), "is not", repr(prompt + want + "\n"))
            self.sortie("export", checkpoint, exported)
            for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                expect((exported / file).read_bytes() == (folder / file).read_bytes(), "other bytes:", file)
            again = transformers.AutoTokenizer.from_pretrained(exported)
            expect(again(prompt).input_ids == inputs["input_ids"][0].tolist(), "another tokenizer")


def main():
    names = ["text", *TRAINED, *CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sortie-train", type=pathlib.Path, default=ROOT / "build" / "release" / "bin" / "sortie-train")
    parser.add_argument("--venv", help="a virtual environment with the pinned versions")
    parser.add_argument("names", nargs="*", help="only these: " + ", ".join(names))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in names]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}")
    if not arguments.sortie_train.exists():
        parser.error(f"{arguments.sortie_train}: not there; build sortie-train first")
    enter_environment(arguments.venv)
    check_versions()
    os.environ["HF_HUB_OFFLINE"] = "1"  # a folder that needs the network is faulty
    import torch
    from transformers.utils import logging as said

    said.disable_progress_bar()
    said.disable_default_handler()  # Loaded records the messages
    said.enable_propagation()
    torch.set_num_threads(1)
    failed = 0
    for name in arguments.names or names:
        with tempfile.TemporaryDirectory(prefix="sortie-hf-") as work:
            bench = Bench(arguments.sortie_train, pathlib.Path(work))
            try:
                if name == "text":
                    bench.check_text()
                else:
                    (bench.check_trained if name in TRAINED else bench.check_fixture)(name)
                print(f"ok      {name}", flush=True)
            except Exception as problem:  # also those of transformers
                failed += 1
                print(f"FAILED  {name}: {type(problem).__name__}: {problem}", flush=True)
    if failed:
        sys.exit(f"check_hf_exports: {failed} models failed")


if __name__ == "__main__":
    main()
