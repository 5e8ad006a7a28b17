"""Text for benchmarks, from the files of this machine (licences, C headers, Python and Perl)."""
import glob
import os
import random


def corpus(megabytes):
    """Yields documents of a few kilobytes: real text first, then the same lines in other orders."""
    places = ["/usr/share/common-licenses/*", "/usr/include/*.h", "/usr/include/*/*.h", "/usr/lib/python3*/*.py", "/usr/lib/python3*/*/*.py", "/usr/share/perl/*/*.pm", "/usr/share/doc/*/copyright"]
    texts = []
    for path in sorted(path for place in places for path in glob.glob(place)):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
    size, wanted, shuffle = 0, megabytes * 1_000_000, random.Random(1)
    while size < wanted:
        for text in texts:
            for at in range(0, len(text), 4000):
                size += len(text[at:at + 4000].encode())
                yield text[at:at + 4000]
                if size >= wanted:
                    return
        for i, text in enumerate(texts):
            lines = text.splitlines(keepends=True)
            shuffle.shuffle(lines)
            texts[i] = "".join(lines)
