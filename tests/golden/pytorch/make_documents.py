#!/usr/bin/env python3
"""Makes documents.json of this folder: twenty steps of the goldens' gpt2, llama and mistral on rows that hold several
documents, with AdamW in fp32. Each document goes through the model alone, so that none sees another and the positions
of each start at 0.

    python3 make_documents.py [--check]     writes the file, or compares with what is there (to 1e-5)

Needs torch, transformers and safetensors. The test suite needs none of them: the file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import random
import sys
from types import SimpleNamespace

import torch
from make_goldens import HERE, load
from make_recipes import ADAMW, CLIP, train
from safetensors.torch import load_file

FAMILIES = ("gpt2", "llama", "mistral")


def lengths_of(rows, length, seed):
    """Of the documents of each row, some of them a single token, one row a single document."""
    draw = random.Random(seed)
    lengths = []
    for row in range(rows):
        left, of_row = length, []
        while left > 0:
            of_row.append(length if row == 0 else min(left, draw.choice((1, 2, 5, 7, 11))))
            left -= of_row[-1]
        lengths.append(of_row)
    return lengths


class Alone(torch.nn.Module):
    """The model on rows of documents."""

    def __init__(self, model, lengths):
        super().__init__()
        self.model, self.lengths, self.config = model, lengths, model.config

    def forward(self, tokens):
        rows = []
        for row, lengths in zip(tokens, self.lengths, strict=True):
            rows.append(torch.cat([self.model(document[None]).logits[0] for document in row.split(lengths)]))
        return SimpleNamespace(logits=torch.stack(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path = HERE / "documents.json"
    numbers = {"arguments": ADAMW, "clip_grad_norm": CLIP, "recipe": {}}
    for seed, family in enumerate(FAMILIES):
        batch = load_file(HERE / family / "batch.safetensors")
        tokens = batch["tokens"].long()
        lengths = lengths_of(*tokens.shape, seed)
        losses = train(Alone(load(HERE / family), lengths), tokens, batch["targets"].long(), {})
        numbers[family] = {"lengths": lengths, "losses": losses}
        print(f"{family}: {lengths}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    if not check:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    worst = max(abs(a - b) for family in FAMILIES
                for a, b in zip(numbers[family]["losses"], stored[family]["losses"], strict=True))
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
