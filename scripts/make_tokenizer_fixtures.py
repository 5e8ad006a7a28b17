#!/usr/bin/env python3
"""Writes tests/data/tokenizer: small tokenizer.json files, and the results of the `tokenizers` package with them on texts.

  scripts/make_tokenizer_fixtures.py [FOLDER]      (needs: pip install tokenizers==0.23.3)

The texts are not stored: tests/support/mixed_text.h generates the same ones from pieces.json. The ids are stored as a
hash per block of text, which shows where a difference is.
"""
import glob
import json
import os
import sys
import sysconfig

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BLOCKS, BLOCK_CHARS = 64, 16000  # a million characters
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(contractions, numbers):
    first = r"[^\r\n\p{L}\p{N}]?"
    return (f"{first}{UPPER}*{LOWER}+{contractions}|{first}{UPPER}+{LOWER}*{contractions}|{numbers}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K, TEKKEN = cased(CONTRACTIONS + "?", r"\p{N}{1,3}"), cased("", r"\p{N}")
# Applied one after the other. The third contains line breaks instead of escapes, as in DeepSeek's file.
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
               .replace(r"\r\n", "\r\n")]

PIECES = {
    "word": "the of and to in is that for it was on with as are be this have from not by at or an but their which one you were "
            "all we when there can more if no man out other so what time up go about than into could state only new year some "
            "take come these know see use get like then first any work now may such give over think most even find day also "
            "after way many must look before great back through long where much should well people down own just because good "
            "straße größer Äpfel façade œuvre niño señor žlutý kůň crème brûlée Łódź ångström İstanbul ﬁne ǆ internationalization "
            "считать время который человек Ελλάδα λόγος tiếng Việt ngôn ngữ".split(),
    "tail": ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'rE", "'\u017f", "\u2019s", "'", "''", "'x", "'l", "'r", "-", "_", ".", ",", ": ", "!?", "..."],
    "code": ["for (int i = 0; i < n; ++i) {\n    sum += values[i] * 2.5e-3;\n}\n", "def f(self, *args):\n\treturn [x**2 for x in args]  # squares\n\n",
             "if (a->b != NULL && !c) { goto out; }\r\n", "#include <vector>\n\n\n", "https://example.org/a_b?q=1&r=%20x#y", "0x7fff_ffff", "{\"key\": [1, 2.0, null]}",
             "SELECT * FROM t WHERE id='3';", "    \t  ", "/* ... */", "\\n\\t\\u00e9", "$HOME/.config/x.toml", "a@b.cc", "--flag=value"],
    "space": [" ", "  ", "   ", "        ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff", "\u0085", "\u2028", "\u2029", "\v", "\f",
              "\x1c", "\u1680", "\u180e", "\u202f", "\u200d", "\x00", "\x7f"],
    "emoji": ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f",
              "\u263a", "\u2728", "\U0001f9d1\u200d\U0001f4bb", "\U0001faf6", "\U0001f680"],
    "number": ["0", "7", "42", "123", "1234", "2024", "1234567", "3.14", "1,000,000", "\u0661\u0662\u0663\u0664", "\u00bd", "\u00b2\u00b3", "\u2167", "\uff11\uff12\uff13\uff14", "\u3007", "\u2460\u2461", "\u0967\u0968"],
    "mark": ["\u0301", "\u0300", "\u0308", "\u0327", "\u0323", "\u0302", "\u0345", "\u0338", "\u093c", "\u0e48", "\u3099", "\u20d0", "\u0f71", "\u0f72", "\u05b0", "\u064b", "\u0651", "\u1161", "\u11a8", "\u0bbe", "\u302a"],
    "added": ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<mask>", "<left>", "<right>", "<word>",
              "<|im_start", "|>", "<s>", "</s>", "<unk>", "<0x41>", "\u2581", "caf\u00e9", "cafe\u0301", "  ", "    ", "\u0120the"],
    # invalid UTF-8, as hexadecimal
    "bad": ["80", "bf80", "c0af", "e28228", "e282", "f09f98", "f0808080", "ed a0 80", "edb080", "f4908080", "ff", "fe", "c3", "e0", "f8888080 80", "c341", "e282c3a9"],
}
# (first code point, count): ranges from which the characters of a script are drawn
SCRIPTS = [[0x4E00, 300], [0x4E00, 20992], [0x3041, 86], [0x30A1, 90], [0xAC00, 11172], [0x1100, 256], [0x0621, 50], [0x0600, 256], [0x05D0, 27], [0x0E01, 58], [0x0905, 100], [0x0400, 256],
           [0x0370, 144], [0x20000, 42720], [0x1F300, 700], [0x2000, 112], [0x2190, 112], [0x0980, 256], [0x0F00, 256], [0x1E00, 256], [0xF900, 512], [0xFB00, 80], [0x1D400, 1024], [0x0080, 128]]


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return (z ^ z >> 31) % n

    def one_of(self, values):
        return values[self.below(len(values))]


def char(random):
    c = random.below(0x110000 - 0x800)
    return chr(c if c < 0xD800 else c + 0x800)


def mixed_text(seed, chars):
    """Returns bytes, some of which are not valid UTF-8. mixed_text.h draws the same numbers in the same order."""
    random, out, count = Random(seed), [], 0
    while count < chars:
        kind, text = random.below(32), ""
        if kind < 12:
            text = (" " if random.below(8) else "") + random.one_of(PIECES["word"])
            if random.below(6) == 0:
                text += random.one_of(PIECES["tail"])
        elif kind < 14:
            text = random.one_of(PIECES["code"])
        elif kind < 17:
            for _ in range(1 + random.below(3)):
                text += random.one_of(PIECES["space"])
        elif kind < 19:
            text = (" " if random.below(2) else "") + random.one_of(PIECES["number"])
        elif kind < 20:
            text = random.one_of(PIECES["emoji"])
        elif kind < 26:
            first, n = random.one_of(SCRIPTS)
            for _ in range(1 + random.below(12)):
                text += chr(first + random.below(n))
        elif kind < 27:
            text = random.one_of(PIECES["word"])
            for _ in range(1 + random.below(4)):
                text += random.one_of(PIECES["mark"])
        elif kind < 28:
            for _ in range(1 + random.below(6)):
                text += chr(33 + random.below(94))
        elif kind < 30:
            text = random.one_of(PIECES["added"])
        elif kind < 31:
            text = char(random)
        else:
            out.append(bytes.fromhex(random.one_of(PIECES["bad"])))
            count += 1
            continue
        out.append(text.encode())
        count += len(text)
    return b"".join(out)


def every_char(first):
    """Returns a text of the 4096 code points from `first` on, without surrogates, each next to characters that split words."""
    text = ""
    for c in map(chr, (c for c in range(first, first + 4096) if not 0xD800 <= c < 0xE000)):
        text += f"{c}a{c} {c}{c}1{c}'{c}\n{c}\t{c}e{c}\u0301 .{c}\n"
    return text


EVERY_CHAR_BLOCKS = [*range(0, 0x30000, 4096), 0x30000, 0x31000, 0x32000, 0x50000, 0xE0000, 0xF0000, 0x10F000]


def fnv(values, width):
    state = 0xCBF29CE484222325
    for value in values:
        for byte in value.to_bytes(width, "little") if width > 1 else (value,):
            state = (state ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"{state:016x}"


def corpus():
    """Yields lines to train on: licences, Python sources, and mixed text."""
    paths = sorted(glob.glob("/usr/share/common-licenses/*"))[:12] + sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/[a-f]*.py"))
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from file.read().splitlines(keepends=True)
    yield from mixed_text(7, 200_000).decode(errors="replace").splitlines(keepends=True)


def byte_level(normalizer, pre_tokenizer, added, vocab, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def split(*patterns):
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def special(*contents):
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def characters(metaspace):
    """BPE over characters: as converted from sentencepiece (byte fallback), or with Metaspace and an unknown token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=not metaspace))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", "<s>", "</s>"] + ([] if metaspace else [f"<0x{b:02X}>" for b in range(256)])
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=900, limit_alphabet=150, special_tokens=names, show_progress=False))
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] < 3]
    if metaspace:
        parts["pre_tokenizer"].update(prepend_scheme="first", split=False)
        parts["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    else:
        parts["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
        parts["pre_tokenizer"] = None
        parts["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                             {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return Tokenizer.from_str(json.dumps(parts))


def around(tokenizer, template):
    names = [name for name in template.split() if name != "$A"]
    return processors.TemplateProcessing(single=template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in set(names)])


def make_tokenizers():
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    yield "gpt2", byte_level(None, plain, special("<|endoftext|>"), 1500)
    llama = byte_level(None, split(LLAMA3), special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), 1500, ignore_merges=True)
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around(llama, "<|begin_of_text|> $A")])
    yield "llama3", llama
    chat = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    yield "qwen2", byte_level(normalizers.NFC(), split(QWEN2), chat + [AddedToken("<tool_call>", normalized=False)], 1500)
    yield "qwen35", byte_level(normalizers.NFC(), split(QWEN35), chat, 900)
    # Every flag of added tokens; runs of spaces as in GPT-NeoX.
    flags = [AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("<left>", lstrip=True, rstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
             AddedToken("<word>", single_word=True), AddedToken("of", single_word=True, normalized=False), AddedToken("caf\u00e9", normalized=True), AddedToken("  "), AddedToken("    ")]
    yield "neox", byte_level(normalizers.NFC(), plain, special("<|endoftext|>") + flags, 900)
    prefix = byte_level(None, pre_tokenizers.ByteLevel(add_prefix_space=True), special("<|endoftext|>", "<|startoftext|>"), 600)
    prefix.post_processor = processors.RobertaProcessing(("<|endoftext|>", prefix.token_to_id("<|endoftext|>")), ("<|startoftext|>", prefix.token_to_id("<|startoftext|>")))
    yield "prefix", prefix
    llama = characters(metaspace=False)
    llama.post_processor = around(llama, "<s> $A </s>")
    yield "llama2", llama
    metaspace = characters(metaspace=True)
    metaspace.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    yield "metaspace", metaspace
    o200k = byte_level(None, split(O200K), special("<|endoftext|>", "<|startoftext|>"), 1200, ignore_merges=True)
    o200k.post_processor = processors.Sequence([around(o200k, "<|endoftext|> <|startoftext|> $A <|endoftext|> <|startoftext|>"), processors.ByteLevel()])
    yield "o200k", o200k
    yield "tekken", byte_level(None, split(TEKKEN), special("<s>", "</s>"), 900)
    deepseek = byte_level(normalizers.Sequence([]), split(*DEEPSEEK_V3), special("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"), 1200)
    deepseek.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "deepseek-v3", deepseek


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/data/tokenizer"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/pieces.json", "w", encoding="ascii") as file:
        json.dump(PIECES | {"scripts": SCRIPTS}, file, separators=(",", ":"))
    blocks = [mixed_text(1000 + i, BLOCK_CHARS) for i in range(BLOCKS)]
    expected = {"package": tokenizers.__version__, "block_chars": BLOCK_CHARS, "text": [fnv(block, 1) for block in blocks], "every_char_blocks": EVERY_CHAR_BLOCKS, "tokenizers": {}}
    for name, tokenizer in make_tokenizers():
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as file:
            json.dump(json.loads(tokenizer.to_str()), file, ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_file(f"{folder}/{name}.json")
        ids = [e.ids for e in tokenizer.encode_batch([block.decode(errors="replace") for block in blocks], add_special_tokens=False)]
        every = [e.ids for e in tokenizer.encode_batch([every_char(first) for first in EVERY_CHAR_BLOCKS], add_special_tokens=False)]
        expected["tokenizers"][name] = {
            "vocab_size": tokenizer.get_vocab_size(),
            "tokens": sum(map(len, ids)),
            "ids": [fnv(block, 4) for block in ids],
            "decoded": [fnv(tokenizer.decode(block).encode(), 1) for block in ids],
            "every_char": [fnv(block, 4) for block in every],
            # with add_special_tokens=True: the first block, and the empty text
            "special": [fnv(tokenizer.encode(blocks[0].decode(errors="replace")).ids, 4), tokenizer.encode("").ids],
        }
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {sum(map(len, ids))} ids", flush=True)
    with open(f"{folder}/expected.json", "w", encoding="ascii") as file:
        json.dump(expected, file, indent=0, separators=(",", ":"))


if __name__ == "__main__":
    main()
