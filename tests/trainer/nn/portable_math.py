#!/usr/bin/env python3
"""Prints the hashes that portable_math_test.cc expects: the same IEEE operations, one by one, with Python's floats."""

import math
import struct

MASK = (1 << 64) - 1


def uniform(key, index):
    z = (key + 0x9E3779B97F4A7C15 * (index + 1)) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (float((z ^ (z >> 31)) >> 12) + 0.5) * 2.0**-52


def sine(x):
    z = x * x
    r = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * (2.75573137070700676789e-06 + z * (
        -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))
    return x + z * x * (-1.66666666666666324348e-01 + z * r)


def cosine(x):
    z = x * x
    r = z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * (2.48015872894767294178e-05 + z * (
        -2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))))
    half = 0.5 * z
    w = 1.0 - half
    return w + ((1.0 - w) - half + z * r)


def turn(turns, first, second):
    quarter = int(4.0 * turns + 0.5)
    rest = (turns - 0.25 * quarter) * (2.0 * math.pi)
    value = second(rest) if quarter & 1 else first(rest)
    return -value if quarter & 2 else value


def log(x):
    mantissa, k = math.frexp(x)
    mantissa, k = 2.0 * mantissa, k - 1
    if mantissa > math.sqrt(2.0):
        mantissa, k = 0.5 * mantissa, k + 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (
        1.818357216161805012e-01 + w * 1.479819860511658591e-01)))
    half = 0.5 * f * f
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + (odd + even)) + k * 1.90821492927058770002e-10)) - f)


def exp2(x):
    halve = x < -0.5
    y = (x + 1.0 if halve else x) * math.log(2.0)
    total = 1.0
    for n in range(16, 0, -1):
        total = 1.0 + total * y / n
    return 0.5 * total if halve else total


def power(base, exponent):
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def hash_of(values):
    value = 0xCBF29CE484222325
    for number in values:
        for byte in struct.pack("<d", number):
            value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


points = [uniform(11, i) for i in range(4096)]
print("logs", hex(hash_of(map(log, points))))
print("sines", hex(hash_of(turn(u, sine, cosine) for u in points)))
print("cosines", hex(hash_of(turn(u, cosine, lambda x: -sine(x)) for u in points)))
print("powers", hex(hash_of(value for i, u in enumerate(points) for value in (exp2(-u), power(u, i % 100)))))
