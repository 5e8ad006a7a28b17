#!/usr/bin/python3 -S
"""counter.py LIMIT RATE [FIRST]: prints the numbers from 0, or FIRST, to LIMIT - 1, one per line, RATE per second."""

import os
import sys
import time

limit, rate = int(sys.argv[1]), float(sys.argv[2])
for number in range(int(sys.argv[3]) if len(sys.argv) > 3 else 0, limit):
    os.write(1, b"%d\n" % number)
    time.sleep(1 / rate)
