#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains tiny tokenizers in the styles of well-known models and records what the reference libraries make of varied text.

    pip install tokenizers sentencepiece
    tests/unit/worker/data/make_tokenizer_goldens.py

Writes testdata/: one *.json (tokenizer.json) or *.model per style, and cases.json: texts with the expected ids per style.
"""
import json
import pathlib
import random

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "testdata"
ROOT = HERE.parents[3]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SAMPLES = [
    "Hello, world! It's 2024 and we've 1234567 reasons; they'll see, I'd say, y'all'RE 'S ok.",
    "  two spaces, then   three\n\n\n newlines \t tabs\t\tand trailing   ",
    "\r\nWindows\r\nlines\r\n\r\n  indented\r\n",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n\tpass\n",
    "Größe, naïve café, Übermut, Ångström, smørrebrød, čeština, łódź",
    "Cafe\u0301 A\u030angstro\u0308m e\u0323\u0302 \u1112\u1161\u11ab\u1100\u1173\u11af q\u0307\u0323",
    "Привет, мир! Как дела? 你好,世界!今日は世界。 안녕하세요 세계 שלום עולם مرحبا بالعالم",
    "😀😃 👩‍👩‍👧‍👦 🇩🇪 ✨\ufe0f and math ∑∫√≈≠ ½ ² ₃ Ⅷ ١٢٣ १२३",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f\u000bg\u000ch \u00a0 \u00a0x",
    "\u0000\u0001\u007f\u0080\u00ad\ufeff\ufffd\U000e0001",
    "12 123 1234 12345 1,234.56 0x1F 3.14e-10 1st 2nd",
    "...!!! ??? --- *** ((())) [] {} <> </html> @user #tag $5 %^&*",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D '\u017f '\u212a",
    " " * 40 + "x" + " " * 7, "\n" * 9, "\t \n \t", " ", "", "a", "\n", "é",
    "x" * 300, "ab" * 200 + " " + "1" * 100,
    "the quick brown fox jumps over the lazy dog " * 3,
]


def random_texts(count):
    rng = random.Random(20240520)
    pools = [
        "abcdefghijklmnopqrstuvwxyz", "ABC xyz", " \n\t\r", "  ", "0123456789", ".,;:!?'\"-()", "éüßñçøå", "\u0301\u0308\u0323",
        "жщюя", "漢字仮名", "한글",
        "\u00a0\u2003\u3000\u0085", "😀✨", "'s't'll", "\n\n ", "ⅷ½²",
    ]
    for _ in range(count):
        yield "".join("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 4)))
                      for _ in range(rng.randint(1, 25)))


def corpus():
    return (ROOT / "LICENSE").read_text().split("\n") + SAMPLES


def train_bpe(normalizer, steps, vocabulary, special):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = steps
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False)])
    return tokenizer


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def save(name, tokenizer, change=lambda model: None):
    definition = json.loads(tokenizer.to_str())
    change(definition["model"])
    text = json.dumps(definition, ensure_ascii=True, separators=(",", ":"))
    (OUT / f"{name}.json").write_text(text + "\n")
    return Tokenizer.from_str(text)


def merges_as_text(model):
    model["merges"] = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def ignore_merges(model):
    model["ignore_merges"] = True


def train_sentencepiece(name, kind):
    text = OUT / "corpus.tmp"
    text.write_text("\n".join(corpus()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(OUT / name), vocab_size=420, model_type=kind, byte_fallback=True,
        normalization_rule_name="identity", character_coverage=0.98, remove_extra_whitespaces=(kind == "unigram"),
        minloglevel=2)
    text.unlink()
    (OUT / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))


def main():
    OUT.mkdir(exist_ok=True)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    bpe = {
        "gpt2": save("gpt2", train_bpe(None, byte_level(True), 560, "<|endoftext|>"), merges_as_text),
        "llama3": save("llama3", train_bpe(None, split(LLAMA3), 560, "<|end_of_text|>"), ignore_merges),
        "qwen": save("qwen", train_bpe(normalizers.NFC(), split(QWEN), 560, "<|endoftext|>")),
        "digits": save("digits", train_bpe(None, digits, 420, "<|endoftext|>")),
    }
    pieces = {"unigram": train_sentencepiece("unigram", "unigram"), "spbpe": train_sentencepiece("spbpe", "bpe")}
    cases = []
    for text in SAMPLES + list(random_texts(120)):
        ids = {name: t.encode(text, add_special_tokens=False).ids for name, t in bpe.items()}
        if "\0" not in text:  # the library stops there
            ids.update({name: t.encode(text) for name, t in pieces.items()})
        cases.append({"text": text, "ids": ids})
    lines = ",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in cases)
    (OUT / "cases.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
