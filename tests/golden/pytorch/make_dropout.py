#!/usr/bin/env python3
"""Makes dropout.json of this folder: twenty steps of the goldens' llama and gpt2 with dropout, in the modules in which
transformers and PEFT have it, with AdamW in fp32. Which elements are dropped is not torch's choice but that of
kernels/dropout.h, written here once more.

    python3 make_dropout.py [--check]     writes the file, or compares with what is there (to 1e-5)

Needs torch, transformers, safetensors and peft. The test suite needs none of them: the file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import sys

import numpy
import torch
from make_goldens import HERE, load
from make_lora import adapted
from make_recipes import ADAMW, CLIP, train
from safetensors.torch import load_file

SEED = 20011
# As a job spec writes them under model.dropout and model.lora.
RECIPES = {
    "embedding_and_residual": {"dropout": {"embedding": 0.1, "residual": 0.2}, "families": ["gpt2"]},
    "adapters": {"lora": {"rank": 4, "alpha": 8.0, "targets": "all-linear", "dropout": 0.25}, "families": ["gpt2", "llama"]},
    "all": {"dropout": {"embedding": 0.3, "residual": 0.1},
            "lora": {"rank": 4, "alpha": 8.0, "targets": "all-linear", "dropout": 0.05}, "families": ["gpt2"]},
}
# coordinator/compiler/layers/forward.h: what is dropped of a layer; the embedding is of the layer before the first.
SITES_A_LAYER, EMBEDDING, ATTENTION_OUT, MLP_OUT = 16, 1, 2, 3
ADAPTERS = {"attn.c_attn": 4, "q_proj": 4, "k_proj": 4, "v_proj": 4, "attn.c_proj": 5, "o_proj": 5,
            "mlp.c_fc": 6, "gate_proj": 6, "up_proj": 6, "mlp.c_proj": 7, "down_proj": 7}


def philox(counter, key):
    """Ten rounds of Philox4x32 over arrays of four words each (Salmon et al. 2011)."""
    c, k, low = [numpy.asarray(word, numpy.uint64) for word in counter], list(key), numpy.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        c = [(second >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(k[0]), second & low,
             (first >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(k[1]), first & low]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def factors(shape, site, probability, first_sequence):
    """0 where an element is dropped, and else what it is multiplied by."""
    sequences, positions, columns = shape
    key = [int(word) for word in philox([site, 0, 0x64726F70, 0], [SEED % 2**32, SEED >> 32])[:2]]
    sequence = (first_sequence + numpy.arange(sequences))[:, None, None]
    position = numpy.arange(positions)[None, :, None]
    block = numpy.arange((columns + 7) // 8)[None, None, :]
    words = philox(numpy.broadcast_arrays(block, position, sequence, 0 * block), key)
    halves = [half for word in words for half in (word & numpy.uint64(0xFFFF), word >> numpy.uint64(16))]
    bits = numpy.stack(halves, axis=-1).reshape(sequences, positions, -1)[:, :, :columns]
    below = round(probability * 65536)
    return torch.tensor(numpy.where(bits < below, 0, 65536 / (65536 - below)), dtype=torch.float32)


class Drop(torch.nn.Module):
    def __init__(self, run, layer, site, probability):
        super().__init__()
        self.run, self.site, self.probability = run, (layer + 1) * SITES_A_LAYER + site, probability

    def forward(self, x):
        shape = x.shape if x.dim() == 3 else (1, *x.shape)
        return x * factors(shape, self.site, self.probability, self.run["step"] * shape[0]).reshape(x.shape)


def layer_of(name):
    return next(int(part) for part in name.split(".") if part.isdigit())


def with_dropout(folder, family, recipe):
    """Every module that drops something drops what is asked here."""
    run = {"step": -1}
    adapter, dropout = recipe.get("lora"), recipe.get("dropout", {})
    model = adapted(folder, family, adapter) if adapter else load(folder)
    for name, module in list(model.named_modules()):
        if name.endswith("transformer.drop") and dropout:
            module.forward = Drop(run, -1, EMBEDDING, dropout["embedding"]).forward
        elif name.endswith(("attn.resid_dropout", "mlp.dropout")) and dropout:
            site = ATTENTION_OUT if name.endswith("resid_dropout") else MLP_OUT
            module.forward = Drop(run, layer_of(name), site, dropout["residual"]).forward
        elif name.endswith("lora_dropout"):
            site = next(site for part, site in ADAPTERS.items() if name.removesuffix(".lora_dropout").endswith(part))
            module["default"] = Drop(run, layer_of(name), site, adapter["dropout"])

    def next_step(*_):
        run["step"] += 1

    model.register_forward_pre_hook(next_step)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path, numbers = HERE / "dropout.json", {}
    for name, recipe in RECIPES.items():
        groups = {"groups": {"*": {"frozen": True}, "*lora_*": {"frozen": False}}} if "lora" in recipe else {}
        numbers[name] = {"arguments": ADAMW, "clip_grad_norm": CLIP, "recipe": recipe | {"seed": SEED}}
        for family in recipe["families"]:
            batch = load_file(HERE / family / "batch.safetensors")
            model = with_dropout(HERE / family, family, recipe)
            losses = train(model, batch["tokens"].long(), batch["targets"].long(), groups)
            numbers[name][family] = {"losses": losses}
            print(f"{name} {family}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    if not check:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    worst = max(abs(a - b) for name, recipe in RECIPES.items() for family in recipe["families"]
                for a, b in zip(numbers[name][family]["losses"], stored[name][family]["losses"], strict=True))
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
