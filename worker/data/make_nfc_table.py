#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints nfc_table.inc: what Unicode normalization form C needs beyond Hangul, from Python's own Unicode data.

    worker/data/make_nfc_table.py > worker/data/nfc_table.inc
"""
import sys
import unicodedata as u

LIMIT = 0x110000


def is_hangul(c):
    return 0xAC00 <= c <= 0xD7A3


def ranges(key):
    """[(first, last, key)] of runs of code points with the same true key."""
    out = []
    for c in range(LIMIT):
        value = key(c)
        if not value:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


decompositions = []
seconds = set()
for c in range(LIMIT):
    text = u.decomposition(chr(c))
    if not text or text.startswith("<") or is_hangul(c):
        continue
    parts = [int(p, 16) for p in text.split()] + [0]
    composes = u.normalize("NFC", chr(c)) == chr(c) and parts[1] != 0
    decompositions.append((c, parts[0], parts[1], int(composes)))
    if composes:
        seconds.add(parts[1])


def needs_work(c):
    """Not a starter that every NFC text keeps as it is, whatever stands before it."""
    if is_hangul(c):
        return 0
    ch = chr(c)
    if 0xD800 <= c < 0xE000:
        return 0
    hangul_part = 0x1161 <= c <= 0x1175 or 0x11A8 <= c <= 0x11C2
    return int(u.combining(ch) != 0 or u.normalize("NFC", ch) != ch or c in seconds or hangul_part)


write = sys.stdout.write
write(f"// Made by make_nfc_table.py from Unicode {u.unidata_version}. Not edited by hand.\n")
write("constexpr Decomposition kDecompositions[] = {\n")
for row in decompositions:
    write("{0x%X,0x%X,0x%X,%d},\n" % row)
write("};\nconstexpr ClassRange kClasses[] = {\n")
for first, last, value in ranges(lambda c: u.combining(chr(c))):
    write("{0x%X,0x%X,%d},\n" % (first, last, value))
write("};\nconstexpr ClassRange kNeedWork[] = {\n")
for first, last, value in ranges(needs_work):
    write("{0x%X,0x%X,%d},\n" % (first, last, value))
write("};\n")
