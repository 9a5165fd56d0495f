#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what the tokenizers library makes of hostile text with many forms of tokenizer.json.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    tests/unit/worker/data/tokenizer_json/make_recorded_ids.py

Writes recorded.jsonl: one form a line, as a change (RFC 7396) of a document in ../testdata, with texts, their ids and what
those decode to. Documents that are missing there are trained.
"""
import base64
import io
import json
import pathlib
import random
import tempfile

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
BASES = HERE.parent / "testdata"
ROOT = HERE.parents[4]
TEXTS = 12  # of random text for each form

POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABC xyz", " \n\t\r", "  ", "   ", "0123456789", ".,;:!?'\"-()_", "éüßñçøå", "\u0301\u0308\u0323",
    "жщюя", "漢字仮名", "한글", "\u00a0\u2003\u3000\u0085\u2028\u200b", "😀✨👩‍👩‍👧", "'s't'll", "\n\n ", "ⅷ½²", "ﬁＡｂ①㎏", "ıİſﬀẞ",
    "\u200c\u200d", "กำ", "नमस्ते", "ⓐ🅰", "\u0000\u0001\u007f\ufeff\ufffd", "▁▁ ",
]
CONTENTS = [  # no two have the same normal form C
    "<|endoftext|>", "</s>", "<s>", "  ", "    ", "   ", "\t\t", "hello", "he", "world", "é", "A\u030a", "<x> y", "\n",
    "\n\n", "ab", "abc", "b", "한", "<|im_start|>", "🙂", "İ", " the", "▁", "12",
]

YOUNG = ["🩷", "🫨", "!🩷🩷", " 🩵", "\U00011f02", "\U0001e4f3", "\U0001e4d5", "\u1c8a", "\U00031351", "\ua7cb", "\u0897"] * 3


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


def corpus():
    return (ROOT / "LICENSE").read_text().split("\n") + ["naïve café жщю 漢字仮名 한글 नमस्ते ﬁ", "don't  stop"] * 5


def train_llama2():
    """Characters, with tokens for the bytes of those that are missing."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    document["pre_tokenizer"] = None
    return document


def train_unigram():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>",
                                                                    show_progress=False))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    document["pre_tokenizer"] = None
    return document


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


PREPEND = {"type": "Prepend", "prepend": "▁"}
SPACES = replace({"String": " "}, "▁")
BYTES_AND_SPACES = sequence("decoders", replace({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                            {"type": "Strip", "content": " ", "start": 1, "stop": 0})


def character_forms(rng):
    llama2 = {"normalizer": sequence("normalizers", PREPEND, SPACES), "pre_tokenizer": None, "decoder": BYTES_AND_SPACES}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    yield "llama 2", llama2
    yield "llama 2, tokens added", {**llama2, "added_tokens": random_added(rng)}
    yield "mistral", {"pre_tokenizer": metaspace("first", False), "decoder": BYTES_AND_SPACES}
    yield "gemma", {"normalizer": SPACES, "pre_tokenizer": split, "decoder": BYTES_AND_SPACES, "model": {"ignore_merges": True}}
    yield "no bytes", {"normalizer": SPACES, "pre_tokenizer": None, "model": {"byte_fallback": False, "fuse_unk": False}}
    yield "unknown are one", {"normalizer": SPACES, "pre_tokenizer": None, "model": {"byte_fallback": False, "fuse_unk": True}}
    yield "some bytes", {"normalizer": SPACES, "pre_tokenizer": None,
                         "model": {"vocab": {f"<0x{byte:02X}>": None for byte in range(0xA0, 0xB8)}}}
    for scheme in ["always", "first", "never"]:
        decoder = metaspace(scheme, True)
        yield f"metaspace {scheme}", {"pre_tokenizer": metaspace(scheme, True), "decoder": decoder, "added_tokens": random_added(rng)}
    words = sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True},
                     metaspace("first", True))
    yield "words", {"normalizer": PREPEND, "pre_tokenizer": words}
    yield "words and signs", {"pre_tokenizer": {"type": "Whitespace"}}
    yield "delimiter", {"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "a"}}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    yield "stripped", {"normalizer": sequence("normalizers", strip, replace({"Regex": " {2,}"}, "▁"), SPACES),
                       "pre_tokenizer": metaspace("first", False)}
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            yield f"split {behavior} {invert}", {
                "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[ab ]"}, "behavior": behavior, "invert": invert}}


def unigram_forms(rng):
    words = sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always", True))
    yield "t5", {"pre_tokenizer": words, "decoder": metaspace("always", True)}
    yield "whole text", {"pre_tokenizer": metaspace("first", False), "added_tokens": random_added(rng)}
    yield "bytes", {"pre_tokenizer": metaspace("always", True), "model": {"byte_fallback": True}, "decoder": BYTES_AND_SPACES}
    yield "no model.type", {"pre_tokenizer": words, "model": {"type": None}}


def character_map():
    """Of a tiny SentencePiece model, with rules for what stands in the texts: the usual map is 240 KiB long."""
    rules = {"\t": " ", "\n": " ", "\r": " ", "\r\n": " ", "\u00a0": " ", "\u3000": " ", "\u2028": " ", "\u200b": " ", "\ufeff": "", "\u0001": "",
             "\u007f": "", "ﬁ": "fi", "ﬀ": "ff", "Ａ": "A", "ｂ": "b", "①": "1", "㎏": "kg", "½": "1⁄2", "²": "2", "ⅷ": "viii", "ⓐ": "a",
             "A\u030a": "Å", "e\u0301": "é", "я": "ya", "ſ": "s", "ẞ": "SS"}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        table.writelines(f"{hexadecimal(key)}\t{hexadecimal(value)}\n" for key, value in rules.items())
        table.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=model, vocab_size=200, minloglevel=2,
                                                 normalization_rule_tsv=table.name)
    normalizer = dict(fields(model.getvalue()))[3]
    return base64.b64encode(dict(fields(normalizer))[2]).decode()


def hexadecimal(text):
    return " ".join(f"{ord(c):X}" for c in text)


def fields(message):
    """(number, value) of the fields of a protobuf message."""
    position = 0

    def number():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(message):
        tag = number()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, number()
            continue
        length = number() if kind == 2 else 4 if kind == 5 else 8
        yield tag >> 3, message[position:position + length]
        position += length


def normalizer_forms():
    plain = {name: {"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "StripAccents")}
    spaces = replace({"Regex": " {2,}"}, " ")
    chains = {name: step for name, step in plain.items()} | {
        "albert": sequence("normalizers", replace({"String": "``"}, "\""), plain["NFKD"], plain["StripAccents"], plain["Lowercase"]),
        "xlnet": sequence("normalizers", plain["Nmt"], plain["NFKC"], spaces, PREPEND),
    }
    precompiled = {"type": "Precompiled", "precompiled_charsmap": character_map()}
    chains["t5 with a map"] = sequence("normalizers", precompiled, {"type": "Strip", "strip_left": False, "strip_right": True},
                            replace({"Regex": " {2,}"}, "▁"))
    chains["precompiled"] = precompiled
    for name, normalizer in chains.items():
        yield name, {"normalizer": normalizer, "pre_tokenizer": metaspace("first", True), "decoder": metaspace("first", True)}
    steps = [{"type": "Punctuation", "behavior": behavior} for behavior in ("Isolated", "Contiguous")] + [{"type": "BertPreTokenizer"}]
    for i, step in enumerate(steps):
        yield f"punctuation {i}", {"pre_tokenizer": step}


def forms(rng):
    """(name, base, change)"""
    for base in ["gpt2", "llama3", "qwen", "digits"]:
        for i in range(3):
            yield f"added tokens {i}", f"{base}.json", {"added_tokens": random_added(rng)}
    spaces = [added(" " * n, 900 - n, normalized=True) for n in range(24, 1, -1)]
    yield "runs of spaces", "gpt2.json", {"added_tokens": [added("<|endoftext|>", 0, special=True)] + spaces}
    bloom = {"Regex": r" ?[^(\s|[.,!?…。，、।۔،])]+"}
    yield "bloom", "llama3.json", {"pre_tokenizer": sequence(
        "pretokenizers", {"type": "Split", "pattern": bloom, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})}
    yield "no model.type", "gpt2.json", {"model": {"type": None}}
    yield "space in front", "gpt2.json", {"pre_tokenizer": {"add_prefix_space": True}}
    for name, change in character_forms(rng):
        yield name, "llama2.json", change
    for name, change in unigram_forms(rng):
        yield name, "unigram.json", change
    for name, change in normalizer_forms():
        yield name, "unigram.json", change
    # Emoji and letters of the last versions of Unicode, which patterns must know.
    for name, pattern in (("letters", r"\p{L}+|[^\p{L}]"), ("marks and digits", r"[\p{L}\p{M}]+|\d{1,3}|\P{N}"),
                          ("deepseek", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")):
        yield f"young characters, {name}", "llama3.json", {"model": {"ignore_merges": False}, "pre_tokenizer": sequence(
            "pretokenizers", {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})}


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


def train_missing():
    for name, train in {"llama2": train_llama2, "unigram": train_unigram}.items():
        path = BASES / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(train(), ensure_ascii=True, separators=(",", ":")) + "\n")


def record(reference, text):
    ids = reference.encode(text, add_special_tokens=False).ids
    decoded = reference.decode(ids, skip_special_tokens=False)
    lost = "\ufffd" in decoded  # the library's words for bytes that are no text
    return {"text": text, "ids": ids} | ({} if lost else {"decoded": decoded})


def main():
    train_missing()
    rng = random.Random(20260522)
    lines = []
    for name, base, change in forms(rng):
        document = merge(json.loads((BASES / base).read_text()), change)
        reference = tokenizers.Tokenizer.from_str(json.dumps(document))
        extra = [token["content"] for token in document.get("added_tokens", [])] + CONTENTS + YOUNG * name.startswith("young")
        items = [record(reference, text) for text in random_texts(rng, extra)]
        lines.append(json.dumps({"name": name, "base": base, "change": change, "items": items}, separators=(",", ":")))
    (HERE / "recorded.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
