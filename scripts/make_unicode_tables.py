#!/usr/bin/env python3
"""Writes trainer/tokenizer/unicode_tables.cc: the properties that the `tokenizers` package gives every code point.

  scripts/make_unicode_tables.py [FILE]      (needs: pip install tokenizers==0.23.3)

The properties come from experiments with the package, not from the Unicode database: its regular expressions (Oniguruma), its
normaliser and its word boundaries follow different versions of Unicode, and ids depend on all three.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
LETTER, NUMBER, SPACE, MARK, UPPER, LOWER, SYMBOL = 1, 2, 3, 4, 5, 6, 7  # CharClass
WORD, NOT_INERT = 8, 16  # flags in addition to the class
HANGUL = range(0xAC00, 0xAC00 + 11172)


def matched(pattern):
    replace = normalizers.Replace(Regex(pattern), "")
    return {c for c in ALL if replace.normalize_str(chr(c)) == ""}


def tokens_around(added, text_of, seen):
    """Returns the code points c for which `seen` is true of the ids of text_of(c)."""
    tokenizer = Tokenizer(models.BPE(vocab={"?": 0}, merges=[], unk_token="?"))
    tokenizer.add_tokens([added])
    return {c for c in ALL if seen(tokenizer.encode(text_of(chr(c)), add_special_tokens=False).ids)}


def combining_classes(nfd):
    known = {}  # for each class a mark that the package treats as a mark
    for c in map(chr, ALL):
        value = unicodedata.combining(c)
        if value and value not in known and nfd(c) == c and (value == 1 or nfd(c + "\u0334") != c + "\u0334"):
            known[value] = c
    order = sorted(known)

    def above(c, value):  # does c sort after a mark of class `value`?
        mark = known[value]
        return c != mark and nfd(c + mark) == mark + c

    low, high = known[order[0]], known[order[-1]]
    found = {}
    for code in ALL:
        c = chr(code)
        if code in HANGUL or nfd(c) != c or (nfd(c + low) == c + low and nfd(high + c) == high + c and c not in (low, high)):
            continue
        # c sorts after the marks of all classes below its own; marks of its own class keep their order
        found[code] = max([v for v in order if v == order[0] or above(c, order[order.index(v) - 1])])
    for code, value in found.items():
        assert unicodedata.combining(chr(code)) in (0, value), hex(code)
    return found


def ranges(value_of):
    out, last = [], 0
    for c in range(0x110000):
        if (value := value_of(c)) != last:
            out.append(c << 8 | value)
            last = value
    return out


def table(name, comment, values):
    lines, line = [], ""
    for value in values:
        text = f"0x{value:x}, "
        if len(line) + len(text) > 126:
            lines.append("    " + line.rstrip())
            line = ""
        line += text
    lines.append("    " + line.rstrip())
    body = "\n".join(lines)
    return f"/// {comment}\nconst std::array<std::uint32_t, {len(values)}> {name}Values = {{\n{body}\n}};\n"


def main():
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    classes = {}
    for pattern, number in ((r"[\p{Lm}\p{Lo}]", LETTER), (r"[\p{Lu}\p{Lt}]", UPPER), (r"\p{Ll}", LOWER), (r"\p{N}", NUMBER),
                            (r"\s", SPACE), (r"\p{M}", MARK), (r"[\p{P}\p{S}]", SYMBOL)):
        for c in matched(pattern):
            assert c not in classes
            classes[c] = number
    assert matched(r"\p{L}") == {c for c in classes if classes[c] in (LETTER, UPPER, LOWER)}
    added = AddedToken("<t>", single_word=True, normalized=False)
    word = tokens_around(added, lambda c: c + "<t>", lambda ids: 1 not in ids)
    assert word == tokens_around(added, lambda c: "<t>" + c, lambda ids: 1 not in ids)
    stripped = tokens_around(AddedToken("<t>", lstrip=True, normalized=False), lambda c: c + "<t>", lambda ids: len(ids) == 1)
    assert stripped == {c for c in classes if classes[c] == SPACE}, "one class serves both"

    combining = combining_classes(nfd)
    split = {c: nfd(chr(c)) for c in ALL if c not in HANGUL and nfd(chr(c)) != chr(c)}
    pairs = {}
    for c in split:
        if nfc(chr(c)) != chr(c):
            continue  # its decomposition does not compose again
        text = split[c]
        for cut in range(1, len(text)):
            first, second = nfc(text[:cut]), text[cut:]
            if len(first) == 1 and len(second) == 1:
                pairs[ord(first), ord(second)] = c
    seconds = {second for _, second in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    not_inert = set(combining) | seconds | {c for c in ALL if nfc(chr(c)) != chr(c)}

    def flags(c):
        if 0xD800 <= c < 0xE000:
            return 0
        return classes.get(c, 0) | (WORD if c in word else 0) | (NOT_INERT if c in not_inert else 0)

    decompositions = []
    for c in sorted(split):
        decompositions += [c << 8 | len(split[c])] + [ord(part) for part in split[c]]
    compositions = [value for (first, second), c in sorted(pairs.items()) for value in (first, second, c)]
    out = [
        f"// Written by scripts/make_unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.",
        '#include "trainer/tokenizer/unicode_tables.h"\n',
        "#include <array>\n",
        "// clang-format off",
        "namespace sortie::trainer {\nnamespace {\n",
        table("kFlag", "(first code point << 8 | flags) of each run of equal flags.", ranges(flags)),
        table("kCombining", "(first code point << 8 | combining class) of each run.", ranges(lambda c: combining.get(c, 0))),
        table("kDecomposition", "(code point << 8 | n), then its n parts.", decompositions),
        table("kComposition", "First, second, what they compose to; sorted.", compositions),
        "}  // namespace\n",
        "std::span<const std::uint32_t> flag_ranges() {\n  return kFlagValues;\n}\n",
        "std::span<const std::uint32_t> combining_ranges() {\n  return kCombiningValues;\n}\n",
        "std::span<const std::uint32_t> decomposition_values() {\n  return kDecompositionValues;\n}\n",
        "std::span<const std::uint32_t> composition_values() {\n  return kCompositionValues;\n}\n",
        "}  // namespace sortie::trainer\n// clang-format on",
    ]
    path = sys.argv[1] if len(sys.argv) > 1 else "trainer/tokenizer/unicode_tables.cc"
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(out) + "\n")


main()
