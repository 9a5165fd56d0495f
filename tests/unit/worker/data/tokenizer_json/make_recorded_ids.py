#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what the tokenizers library makes of hostile text with many forms of tokenizer.json.

    pip install tokenizers==0.23.3
    tests/unit/worker/data/tokenizer_json/make_recorded_ids.py

Writes recorded.jsonl: one form a line, as a change (RFC 7396) of a document in ../testdata or here, with texts and their ids.
"""
import json
import pathlib
import random

import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
BASES = HERE.parent / "testdata"
TEXTS = 24  # of random text for each form

POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABC xyz", " \n\t\r", "  ", "   ", "0123456789", ".,;:!?'\"-()_", "éüßñçøå", "\u0301\u0308\u0323",
    "жщюя", "漢字仮名", "한글", "\u00a0\u2003\u3000\u0085\u2028\u200b", "😀✨👩‍👩‍👧", "'s't'll", "\n\n ", "ⅷ½²", "ﬁＡｂ①㎏", "ıİſﬀẞ",
    "\u200c\u200d", "กำ", "नमस्ते", "ⓐ🅰", "\u0000\u0001\u007f\ufeff\ufffd", "▁▁ ",
]
CONTENTS = [
    "<|endoftext|>", "</s>", "<s>", "  ", "    ", "   ", "\t\t", "hello", "he", "world", "é", "e\u0301", "A\u030a", "<x> y", "\n",
    "\n\n", "ab", "abc", "b", "한", "<|im_start|>", "🙂", "İ", " the", "▁", "12",
]


def random_texts(rng, extra):
    for _ in range(TEXTS):
        parts = []
        for _ in range(rng.randint(1, 20)):
            if rng.random() < 0.25:
                parts.append(rng.choice(extra))
            else:
                parts += [rng.choice(rng.choice(POOLS)) for _ in range(rng.randint(1, 4))]
        yield "".join(parts)


def added(content, number, **options):
    token = {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": False}
    return token | options


def random_added(rng):
    names = ["single_word", "lstrip", "rstrip", "special"]
    return [
        added(content, 5000 + i, normalized=rng.random() < 0.5, **{name: rng.random() < 0.3 for name in names})
        for i, content in enumerate(rng.sample(CONTENTS, rng.randint(3, 14)))
    ]


def forms(rng):
    """(name, base, change)"""
    for base in ["gpt2", "llama3", "qwen", "digits"]:
        for i in range(3):
            yield f"added tokens {i}", f"{base}.json", {"added_tokens": random_added(rng)}
    spaces = [added(" " * n, 900 - n, normalized=True) for n in range(24, 1, -1)]
    yield "runs of spaces", "gpt2.json", {"added_tokens": [added("<|endoftext|>", 0, special=True)] + spaces}
    yield "no model.type", "gpt2.json", {"model": {"type": None}}
    yield "space in front", "gpt2.json", {"pre_tokenizer": {"add_prefix_space": True}}


def merge(document, change):
    if not isinstance(change, dict):
        return change
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def main():
    rng = random.Random(20260522)
    lines = []
    for name, base, change in forms(rng):
        document = merge(json.loads((BASES / base).read_text()), change)
        reference = tokenizers.Tokenizer.from_str(json.dumps(document))
        extra = [token["content"] for token in document.get("added_tokens", [])] + CONTENTS
        items = [{"text": text, "ids": reference.encode(text, add_special_tokens=False).ids} for text in random_texts(rng, extra)]
        lines.append(json.dumps({"name": name, "base": base, "change": change, "items": items}, separators=(",", ":")))
    (HERE / "recorded.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
