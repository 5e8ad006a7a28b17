#!/usr/bin/env python3
"""Writes tests/data/hf/CASE/: tiny random models of every family, and what transformers computes with them.

Each case is a folder as save_pretrained() writes it (config.json, model.safetensors) with random weights, and
reference.safetensors with what the tests compare:

  input_ids, labels   int32 [B, T], labels -100 = not counted
  logits, loss, grad.NAME        f32, on the CPU, eager attention, no dropout
  losses, after.NAME             three AdamW steps on that batch (f32): the loss before each step, the weights after all
  bf16.logits, bf16.loss, bf16.grad.NAME   the same with weights and activations in bf16
  experts.I, bf16.experts.I      int32 [B * T, k], the experts chosen in mixture I

and greedy.json: two prompts and their continuations by generate(do_sample=False) in f32, of GREEDY tokens or as many as the
model has positions for.

The versions below are pinned: the script makes a virtual environment with them in build/hf-venv, unless --venv names one that
has them.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

VERSIONS = {"torch": "2.15.0", "transformers": "5.23.0"}
ROOT = pathlib.Path(__file__).resolve().parent.parent

# AdamW's settings in the three steps; vectors have no weight decay.
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1

GREEDY = 32

SMALL = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, max_position_embeddings=40, vocab_size=37)

# name: (config class, arguments, batch, tokens)
CASES = {
    "gpt2-a": ("GPT2Config", dict(n_embd=16, n_layer=2, n_head=2, n_positions=40, vocab_size=37), 2, 12),
    "gpt2-b": ("GPT2Config", dict(n_embd=24, n_layer=3, n_head=3, n_positions=16, vocab_size=64, n_inner=40,
                                  layer_norm_epsilon=1e-6), 1, 16),
    "gpt-neo-a": ("GPTNeoConfig", dict(hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=40, vocab_size=37,
                                       window_size=4, attention_types=[[["global", "local"], 1]]), 2, 12),
    "gpt-neo-b": ("GPTNeoConfig", dict(hidden_size=24, num_layers=3, num_heads=3, max_position_embeddings=32, vocab_size=41,
                                       window_size=64, intermediate_size=40, attention_types=[[["local", "global"], 1], [["local"], 1]]), 2, 9),
    "gpt-neo-x-a": ("GPTNeoXConfig", SMALL | dict(num_attention_heads=2, rotary_pct=0.25), 2, 12),
    "gpt-neo-x-b": ("GPTNeoXConfig", SMALL | dict(hidden_size=56, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
                                                  rotary_pct=0.25, use_parallel_residual=False), 1, 7),
    "llama-a": ("LlamaConfig", SMALL | dict(num_attention_heads=4, num_key_value_heads=2), 2, 12),
    "llama-b": ("LlamaConfig", SMALL | dict(num_attention_heads=4, num_key_value_heads=1, head_dim=56, tie_word_embeddings=True,
                                            num_hidden_layers=1, rms_norm_eps=1e-5,
                                            rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                                                                 high_freq_factor=4.0, original_max_position_embeddings=16)), 2, 19),
    "llama-c": ("LlamaConfig", SMALL | dict(num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1), 2, 1),
    "mistral-a": ("MistralConfig", SMALL | dict(num_attention_heads=4, num_key_value_heads=2, sliding_window=5), 2, 12),
    "mistral-b": ("MistralConfig", SMALL | dict(num_attention_heads=2, num_key_value_heads=1, head_dim=12, sliding_window=None), 1, 11),
    "qwen2-a": ("Qwen2Config", SMALL | dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True), 2, 12),
    "qwen2-b": ("Qwen2Config", SMALL | dict(num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=3, use_sliding_window=True,
                                            sliding_window=3, max_window_layers=1, rope_parameters=dict(rope_type="default", rope_theta=1e6)), 2, 9),
    "qwen3-a": ("Qwen3Config", SMALL | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True), 2, 12),
    "qwen3-b": ("Qwen3Config", SMALL | dict(num_attention_heads=2, num_key_value_heads=1, head_dim=10, num_hidden_layers=1), 3, 5),
    "mixtral-a": ("MixtralConfig", SMALL | dict(num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
                                                output_router_logits=True, router_aux_loss_coef=0.05), 2, 12),
    "mixtral-b": ("MixtralConfig", SMALL | dict(num_attention_heads=2, num_key_value_heads=1, head_dim=10, num_hidden_layers=1,
                                                num_local_experts=5, num_experts_per_tok=1, sliding_window=4), 1, 9),
    "qwen3-moe-a": ("Qwen3MoeConfig", SMALL | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, moe_intermediate_size=12,
                                                   num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, tie_word_embeddings=True), 2, 12),
    "qwen3-moe-b": ("Qwen3MoeConfig", SMALL | dict(num_attention_heads=2, num_key_value_heads=1, head_dim=10, moe_intermediate_size=10,
                                                   num_experts=16, num_experts_per_tok=2, decoder_sparse_step=2,
                                                   output_router_logits=True, router_aux_loss_coef=0.1), 1, 7),
    "deepseek-v3-a": ("DeepseekV3Config", SMALL | dict(num_attention_heads=2, num_key_value_heads=2, moe_intermediate_size=10, n_routed_experts=8,
                                                       num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=1, first_k_dense_replace=1,
                                                       q_lora_rank=12, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5), 2, 12),
    "deepseek-v3-b": ("DeepseekV3Config", SMALL | dict(num_attention_heads=3, num_key_value_heads=3, moe_intermediate_size=10, n_routed_experts=6,
                                                       num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=2, first_k_dense_replace=0,
                                                       q_lora_rank=None, kv_lora_rank=10, qk_rope_head_dim=6, qk_nope_head_dim=4, v_head_dim=8,
                                                       norm_topk_prob=False, tie_word_embeddings=True, max_position_embeddings=32,
                                                       rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, beta_fast=2.0, beta_slow=0.5,
                                                                            mscale=0.7, mscale_all_dim=1.1, original_max_position_embeddings=8)), 1, 17),
}


def enter_environment(venv):
    """Runs this script again with the pinned versions."""
    if os.environ.get("SORTIE_FIXTURES_ENTERED"):
        return
    python = pathlib.Path(venv or ROOT / "build" / "hf-venv") / "bin" / "python"
    if not python.exists():
        if venv:
            sys.exit(f"{python}: not there; name a virtual environment, or leave --venv out")
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *(f"{n}=={v}" for n, v in VERSIONS.items()), "numpy", "safetensors"], check=True)
    os.execve(python, [str(python), *sys.argv], os.environ | {"SORTIE_FIXTURES_ENTERED": "1"})


def check_versions():
    import importlib.metadata

    for package, version in VERSIONS.items():
        found = importlib.metadata.version(package).split("+")[0]
        if found != version:
            sys.exit(f"{package} {found} in this environment, the fixtures are made with {version}")


def randomise(model, generator):
    """Sets random values with which every part of the model affects the results: norms near 1, all others well away from 0."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = parameter.dim() == 1 and name.endswith("weight")
            # With larger weights rounding decides which key dominates, and results in bf16 are not comparable. GPT-Neo does
            # not scale its scores, so its queries and keys need smaller ones.
            unscaled = "attn.attention.q_proj" in name or "attn.attention.k_proj" in name
            std = 0.25 if name.endswith(("wte.weight", "embed_in.weight", "embed_tokens.weight")) else 0.08 if unscaled else 0.15
            parameter.copy_(1 + 0.2 * noise if norm else 0.1 * noise if parameter.dim() == 1 else std * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))


def split_experts(name, tensor, mixtral):
    """Yields (name, tensor) of each expert from a tensor of all experts, as in the files."""
    base, kind = name.rsplit(".", 1)
    names = dict(gate="w1", up="w3", down="w2") if mixtral else dict(gate="gate_proj", up="up_proj", down="down_proj")
    for expert, one in enumerate(tensor):
        parts = zip(("gate", "up"), one.chunk(2)) if kind == "gate_up_proj" else [("down", one)]
        for part, values in parts:
            yield f"{base}.{expert}.{names[part]}.weight", values


def on_disk(model, folder):
    """Returns a function from a parameter's name and a tensor to the names and tensors that save_pretrained() writes."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        there = set(file.keys())
    mixtral = model.config.model_type == "mixtral"

    def renamed(name):
        return name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name

    here = [name for name, _ in model.named_parameters() if ".mlp.experts." not in name]
    only_here = [n for n in here if renamed(n) not in there]
    only_there = [n for n in there if ".experts." not in n and "score_correction" not in n and n not in map(renamed, here)]
    assert len(only_here) == len(only_there) <= 1, (only_here, only_there)  # some heads have another name in memory

    def spread(name, tensor):
        if ".mlp.experts." in name:
            return split_experts(renamed(name), tensor, mixtral)
        return [(only_there[0] if name in only_here else renamed(name), tensor)]

    return spread


def keep_routing(model):
    """Returns a list to which every forward pass appends the experts chosen in each mixture."""
    chosen = []
    for name, module in model.named_modules():
        if name.endswith(".mlp.gate"):
            module.register_forward_hook(lambda module, inputs, outputs: chosen.append(outputs[2].int()))
    return chosen


def run(model, input_ids, labels, spread):
    """Returns logits, loss and gradients."""
    model.zero_grad()
    out = model(input_ids=input_ids, labels=labels, use_cache=False)
    if input_ids.shape[1] > 1:  # a single token has no target
        out.loss.backward()
    gradients = {d: g.detach().clone() for n, p in model.named_parameters() if p.grad is not None for d, g in spread(n, p.grad)}
    return out.logits.detach(), out.loss.detach().float(), gradients


def greedy(model, generator):
    """Returns prompts with the most useful continuations: many different tokens, and no near ties, which rounding would decide."""
    import torch

    config = model.config
    model.eval()
    model.generation_config.eos_token_id = None
    chosen = {"prompts": [], "continuations": []}
    for length in (3, 7):
        prompts = torch.randint(0, config.vocab_size, (64, length), generator=generator)
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, pad_token_id=0, return_dict_in_generate=True,
                             output_logits=True, max_new_tokens=min(GREEDY, config.max_position_embeddings - length))
        logits = torch.stack(out.logits, 1)
        two = logits.topk(2).values
        margin = ((two[..., 0] - two[..., 1]) / logits.std(-1)).amin(1)
        variety = [len(set(row.tolist())) if m > 0.01 else 0 for row, m in zip(out.sequences[:, length:], margin)]
        best = max(range(len(variety)), key=variety.__getitem__)
        assert variety[best] > 1, variety
        chosen["prompts"].append(prompts[best].tolist())
        chosen["continuations"].append(out.sequences[best, length:].tolist())
    return chosen


def make_case(name, out):
    import torch
    import transformers
    from safetensors.torch import save_file

    class_name, arguments, batch, tokens = CASES[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    zero = {k: 0.0 for k in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "embed_dropout", "resid_dropout", "hidden_dropout")}
    config_class = getattr(transformers, class_name)
    known = config_class().to_dict()
    config = config_class(**arguments, **{k: v for k, v in zero.items() if k in known}, bos_token_id=0, eos_token_id=1, pad_token_id=None)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, generator)
    model.train()
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    spread = on_disk(model, folder)

    input_ids = torch.randint(0, config.vocab_size, (batch, tokens), generator=generator)
    labels = input_ids.clone()
    labels[:, tokens // 2] = -100
    tensors = {"input_ids": input_ids.int(), "labels": labels.int()}
    reduced = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager")
    reduced.train()
    for prefix, one in (("", model), ("bf16.", reduced)):
        routing = keep_routing(one)
        logits, loss, gradients = run(one, input_ids, labels, spread)
        tensors |= {f"{prefix}experts.{i}": chosen.contiguous() for i, chosen in enumerate(routing)}
        tensors[prefix + "logits"] = logits.contiguous()
        if tokens > 1:
            tensors[prefix + "loss"] = loss.reshape(1)
        tensors |= {f"{prefix}grad.{n}": g.contiguous() for n, g in gradients.items()}
    if tokens > 1:
        parameters = list(model.parameters())
        groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=WEIGHT_DECAY),
                  dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
        optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)
        losses = []
        for _ in range(3):
            losses.append(run(model, input_ids, labels, spread)[1])
            optimizer.step()
        tensors["losses"] = torch.stack(losses)
        tensors |= {f"after.{d}": t.contiguous() for n, p in model.named_parameters() for d, t in spread(n, p.detach())}
    save_file(tensors, folder / "reference.safetensors", metadata={"format": "pt"})
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    (folder / "greedy.json").write_text(json.dumps(greedy(saved, generator)) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, {size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "data" / "hf")
    parser.add_argument("--venv", help="a virtual environment with the pinned versions")
    parser.add_argument("cases", nargs="*", help="only these")
    arguments = parser.parse_args()
    enter_environment(arguments.venv)
    check_versions()
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.cases or CASES:
        make_case(name, arguments.out)


if __name__ == "__main__":
    main()
