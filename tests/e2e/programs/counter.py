#!/usr/bin/python3 -S
"""counter.py LIMIT RATE [FIRST [FILE]]: numbers from 0, or from FIRST on, each on a line of stdout, RATE a second; the last one
not before FILE is there."""

import os
import sys
import time

limit, rate = int(sys.argv[1]), float(sys.argv[2])
first, gate = int(sys.argv[3]) if len(sys.argv) > 3 else 0, sys.argv[4:]
for number in range(first, limit):
    while number == limit - 1 and gate and not os.path.exists(gate[0]):
        time.sleep(0.05)
    os.write(1, b"%d\n" % number)
    time.sleep(1 / rate)
