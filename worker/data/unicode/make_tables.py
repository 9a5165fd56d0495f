#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes normal_form_table.inc, character_table.inc and property_table.inc: what the tokenizers library knows of characters.

    pip install tokenizers==0.23.3
    worker/data/unicode/make_tables.py

The library's crates are of several versions of Unicode, so each property is asked of the library itself; Python's own Unicode
data says what to ask for.
"""
import pathlib
import struct
import unicodedata as u

from tokenizers import Regex, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NFC, NFD, NFKC, NFKD = normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()


def is_hangul(c):
    return 0xAC00 <= c <= 0xD7A3


def ranges(key):
    """[(first, last, key)] of runs of code points with the same true key."""
    out = []
    for c in CODES:
        value = key(c)
        if not value:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def combining_class(c):
    """0 for marks that are younger than the library's tables."""
    value = u.combining(chr(c))
    if value == 0:
        return 0
    probe = "\u0334" if value != 1 else "\u0301"  # classes 1 and 230
    text = "a" + chr(c) + probe if value > 1 else "a" + probe + chr(c)
    return value if NFD.normalize_str(text) == u.normalize("NFD", text) else 0


def decompositions():
    rows = []
    for c in CODES:
        text = u.decomposition(chr(c))
        if not text or text.startswith("<") or is_hangul(c) or NFD.normalize_str(chr(c)) == chr(c):
            continue
        parts = [int(p, 16) for p in text.split()] + [0]
        composes = NFC.normalize_str(chr(c)) == chr(c) and parts[1] != 0
        rows.append((c, parts[0], parts[1], int(composes)))
    return rows


def normal_form_table():
    canonical = decompositions()
    seconds = {second for _, _, second, composes in canonical if composes}
    classes = {c: combining_class(c) for c in CODES}

    def needs_work(c):
        """Not a starter that every NFC text keeps as it is, whatever stands before it."""
        if is_hangul(c):
            return 0
        hangul_part = 0x1161 <= c <= 0x1175 or 0x11A8 <= c <= 0x11C2
        return int(classes[c] != 0 or NFC.normalize_str(chr(c)) != chr(c) or c in seconds or hangul_part)

    lines = ["constexpr Decomposition kDecompositions[] = {"]
    lines += ["{0x%X,0x%X,0x%X,%d}," % row for row in canonical]
    compatible, texts = [], []
    for c in CODES:
        text = NFKD.normalize_str(chr(c))
        if text != NFD.normalize_str(chr(c)):
            compatible.append((c, len(texts), len(text)))
            texts += [ord(part) for part in text]
    lines += ["};", "constexpr Compatible kCompatible[] = {"] + ["{0x%X,%d,%d}," % row for row in compatible]
    lines += ["};", "constexpr uint32_t kCompatibleTexts[] = {"]
    lines += [",".join("0x%X" % code for code in texts[i:i + 16]) + "," for i in range(0, len(texts), 16)]
    lines += ["};", "constexpr ClassRange kClasses[] = {"] + ["{0x%X,0x%X,%d}," % tuple(row) for row in ranges(classes.get)]
    lines += ["};", "constexpr ClassRange kNeedWork[] = {"] + ["{0x%X,0x%X,%d}," % tuple(row) for row in ranges(needs_work)]
    return lines + ["};"]


def map_of_a():
    """A character map with one rule, "a" becomes "X": it takes the place of a whole short cluster."""
    units = [0] * 0x400
    units[0] = 0x100 << 10
    units[0x161] = ord("a") | 1 << 8 | 0x200 << 10
    units[0x361] = 0x80000000
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"X\0"


def is_cluster_control(c):
    """Unicode Standard Annex 29; what extends a cluster is asked of the library."""
    prepended = 0x600 <= c <= 0x605 or c in (0x6DD, 0x70F, 0x8E2, 0x110BD, 0x110CD)
    extends = c in (0x200C, 0x200D) or 0xE0020 <= c <= 0xE007F
    return u.category(chr(c)) in ("Cc", "Cf", "Zl", "Zp") and not prepended and not extends


def character_table():
    lower, strip, punctuation = normalizers.Lowercase(), normalizers.StripAccents(), pre_tokenizers.Punctuation()
    digits, words = pre_tokenizers.Digits(), pre_tokenizers.Whitespace()
    clusters = normalizers.Precompiled(map_of_a())
    lines = ["constexpr LowercaseRow kLowercase[] = {"]
    for c in CODES:
        text = lower.normalize_str(chr(c))
        if text != chr(c):
            codes = [ord(part) for part in text] + [0]
            lines.append("{0x%X,0x%X,0x%X}," % (c, codes[0], codes[1]))
    for name, holds in (("kMarks", lambda c: strip.normalize_str(chr(c)) == ""),
                        ("kPunctuation", lambda c: len(punctuation.pre_tokenize_str("a" + chr(c))) == 2),
                        ("kExtends", lambda c: clusters.normalize_str("a" + chr(c)) == "X"),
                        ("kClusterControls", is_cluster_control),
                        ("kNumeric", lambda c: len(digits.pre_tokenize_str("a" + chr(c))) == 2),
                        ("kWord", lambda c: words.pre_tokenize_str("a" + chr(c))[0][0] == "a" + chr(c))):
        lines += ["};", f"constexpr CodeRange {name}[] = {{"] + ["{0x%X,0x%X}," % tuple(row[:2]) for row in ranges(holds)]
    return lines + ["};"]


# Those of RE2 as Debian 12 has it.
RE2_UNICODE = "14.0.0"
CATEGORIES = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cf".split()


def in_pattern(name):
    """The characters that the library's patterns take for \\p{name}."""
    split = pre_tokenizers.Split(Regex("\\p{%s}" % name), behavior="removed", invert=True)
    found = set()
    for begin in range(0, len(CODES), 4096):
        chunk = CODES[begin:begin + 4096]
        for _, (first, end) in split.pre_tokenize_str("".join(map(chr, chunk))):
            found.update(chunk[first:end])
    return found


def property_table():
    assert u.unidata_version == RE2_UNICODE, "run it with the Python that has RE2's version of Unicode: 3.11"
    younger = {name: in_pattern(name) - {c for c in CODES if u.category(chr(c)).startswith(name)} for name in CATEGORIES}
    han = in_pattern("Han")
    younger["Han"] = {c for c in han if 0x2EBF0 <= c <= 0x2EE5D or 0x31350 <= c <= 0x323AF}
    lines = ["constexpr YoungerCharacters kYounger[] = {"]
    for name, codes in younger.items():
        if codes:
            rows = "".join("\\x{%X}-\\x{%X}" % tuple(row[:2]) for row in ranges(lambda c: c in codes))
            lines.append('{"%s", R"(%s)"},' % (name, rows))
    return lines + ["};"]


def main():
    for name, lines in (("normal_form_table", normal_form_table()), ("character_table", character_table()),
                        ("property_table", property_table())):
        head = "// Made by make_tables.py from the tokenizers library. Not edited by hand.\n"
        (HERE / f"{name}.inc").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
