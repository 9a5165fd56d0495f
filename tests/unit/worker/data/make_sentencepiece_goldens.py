#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small SentencePiece models that differ in what decoding depends on and records what the library makes of them.

    pip install sentencepiece protobuf
    tests/unit/worker/data/make_sentencepiece_goldens.py

Writes testdata/sentencepiece.jsonl: a line for each model, with the file (base64), texts with their ids, and ids with
the text that they decode to.
"""
import base64
import io
import json
import pathlib
import random
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = ["the quick brown fox", "  two spaces,  three   ", "\n\tlines\n", "h\u00e9llo w\u00f6rld", "\u4f60\u597d \U0001f600", "a", " ",
         "", "foo bar foo", "\u2581\u2581x \u2581y", "!? the!", "\u2047"]
DENORMALIZER = "61\t62 63\n20 2e\t2e\n"  # "a" becomes "bc", " ." becomes "."
MODELS = {
    "unknown surface": {"unk_surface": "??"},
    "bytes": {"byte_fallback": True},
    "spaces kept": {"remove_extra_whitespaces": False},
    "nothing in front": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "spaces behind": {"treat_whitespace_as_suffix": True},
    "spaces behind and kept": {"treat_whitespace_as_suffix": True, "remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": ["foo bar", "\u2581fo", "x"], "control_symbols": ["<mask>"]},
    "denormalizer": {"denormalization_rule_tsv": DENORMALIZER},
    "unused": {},
    "unused, bytes": {"byte_fallback": True},
}


def train(kind, options):
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        if "denormalization_rule_tsv" in options:
            rules.write(options["denormalization_rule_tsv"])
            rules.flush()
            options = options | {"denormalization_rule_tsv": rules.name}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the quick brown fox jumps over the lazy dog", "hello world, the end.", "foo bar foo"] * 5),
            model_writer=model, model_type=kind, vocab_size=330 if options.get("byte_fallback") else 64, hard_vocab_limit=False,
            normalization_rule_name="identity", minloglevel=3, **options)
    return model.getvalue()


# Every seventh piece, characters too.
def with_unused(serialized):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(serialized)
    for piece in [one for one in model.pieces if one.type == one.NORMAL][::7]:
        piece.type = piece.UNUSED
    return model.SerializeToString()


def main():
    rng = random.Random(1)
    lines = []
    for name, options in MODELS.items():
        for kind in ("unigram", "bpe"):
            serialized = train(kind, options)
            if name.startswith("unused"):
                serialized = with_unused(serialized)
            library = sentencepiece.SentencePieceProcessor(model_proto=serialized)
            encoded = [{"text": text, "ids": library.encode(text)} for text in TEXTS]
            drawn = [[rng.randrange(library.get_piece_size()) for _ in range(rng.randint(1, 12))] for _ in range(12)]
            decoded = [{"ids": ids, "text": library.decode(ids)} for ids in drawn + [one["ids"] for one in encoded] if ids]
            lines.append(json.dumps({"name": f"{kind}, {name}", "model": base64.b64encode(serialized).decode(),
                                     "encoded": encoded, "decoded": decoded}))
    (HERE / "testdata" / "sentencepiece.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
