#!/usr/bin/env python3
"""Writes tests/data/tokenizer/megatron.json: hashes of what Megatron's builder writes for the texts of
make_tokenizer_fixtures.py, and of the merges that the `tokenizers` package learns from them.

  scripts/make_data_fixtures.py [FOLDER]      (needs: pip install tokenizers==0.23.3 torch; pip install --no-deps megatron-core)
"""
import hashlib
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_tokenizer_fixtures as texts  # noqa: E402
import tokenizers  # noqa: E402
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: E402


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def build(tokenizer, documents, end):
    """Returns the hashes of .bin and .idx."""
    with tempfile.TemporaryDirectory() as folder:
        builder = IndexedDatasetBuilder(f"{folder}/x.bin", dtype=DType.optimal_dtype(tokenizer.get_vocab_size()))
        for text in documents:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            ids += [tokenizer.token_to_id(end)] if end else []
            builder.add_document(ids, [len(ids)])
        builder.finalize(f"{folder}/x.idx")
        return [sha256(f"{folder}/x.bin"), sha256(f"{folder}/x.idx")]


def learnt(pattern, vocab, nfc, text):
    """Returns a hash of the learned tokens and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = texts.split(pattern) if pattern else pre_tokenizers.ByteLevel(add_prefix_space=False)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    lines = sorted(model["vocab"], key=model["vocab"].get) + [" ".join(merge) for merge in model["merges"]]
    return texts.fnv("\n".join(lines).encode(), 1)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/data/tokenizer"
    documents = [texts.mixed_text(1000 + i, texts.BLOCK_CHARS).decode(errors="replace") for i in range(texts.BLOCKS)]
    tokenizer = Tokenizer.from_file(f"{folder}/qwen2.json")
    everything = "".join(documents[:16])
    expected = {
        "package": tokenizers.__version__,
        "plain": build(tokenizer, documents, None),
        "with_end": build(tokenizer, documents, "<|endoftext|>"),
        "learnt": {"gpt2": learnt(None, 3000, False, everything), "llama3": learnt(texts.LLAMA3, 3000, False, everything), "qwen2": learnt(texts.QWEN2, 3000, True, everything)},
    }
    with open(f"{folder}/megatron.json", "w", encoding="ascii") as file:
        json.dump(expected, file, indent=1)


main()
