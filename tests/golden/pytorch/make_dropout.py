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
import transformers
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
    "attention": {"dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.25}, "families": ["gpt2", "llama"]},
    "all_of_a_model": {"dropout": {"embedding": 0.1, "residual": 0.1, "attention": 0.1}, "families": ["gpt2"]},
}
# coordinator/compiler/layers/forward.h: what is dropped of a layer; the embedding is of the layer before the first.
SITES_A_LAYER, EMBEDDING, ATTENTION_OUT, MLP_OUT, SCORES = 16, 1, 2, 3, 8
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


def key_of(site, purpose):
    return [int(word) for word in philox([site, 0, purpose, 0], [SEED % 2**32, SEED >> 32])[:2]]


def halves_of(words):
    return [half for word in words for half in (word & numpy.uint64(0xFFFF), word >> numpy.uint64(16))]


def kept(bits, probability):
    below = round(probability * 65536)
    return torch.tensor(numpy.where(bits < below, 0, 65536 / (65536 - below)), dtype=torch.float32)


def factors(shape, site, probability, first_sequence):
    """0 where an element is dropped, and else what it is multiplied by."""
    sequences, positions, columns = shape
    key = key_of(site, 0x64726F70)
    sequence = (first_sequence + numpy.arange(sequences))[:, None, None]
    position = numpy.arange(positions)[None, :, None]
    block = numpy.arange((columns + 7) // 8)[None, None, :]
    words = philox(numpy.broadcast_arrays(block, position, sequence, 0 * block), key)
    bits = numpy.stack(halves_of(words), axis=-1).reshape(sequences, positions, -1)[:, :, :columns]
    return kept(bits, probability)


def weight_factors(shape, site, probability, first_sequence):
    """The same of attention weights [sequences, heads, queries, keys]: a block has the bits of eight queries."""
    sequences, heads, queries, keys = shape
    sequence = (first_sequence + numpy.arange(sequences))[:, None, None, None]
    head, key = numpy.arange(heads)[None, :, None, None], numpy.arange(keys)[None, None, None, :]
    block = numpy.arange((queries + 7) // 8)[None, None, :, None]
    words = philox(numpy.broadcast_arrays(block, key, sequence, head), key_of(site, 0x73636F72))
    bits = numpy.stack(halves_of(words), axis=3).reshape(sequences, heads, -1, keys)[:, :, :queries]
    return kept(bits, probability)


class Drop(torch.nn.Module):
    def __init__(self, run, layer, site, probability):
        super().__init__()
        self.run, self.site, self.probability = run, (layer + 1) * SITES_A_LAYER + site, probability

    def forward(self, x):
        shape = x.shape if x.dim() == 3 else (1, *x.shape)
        return x * factors(shape, self.site, self.probability, self.run["step"] * shape[0]).reshape(x.shape)


def attention_that_drops(run, probability):
    """Causal attention in the form that transformers calls, over modules that know their layer."""
    def attend(module, query, key, value, _mask, scaling=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        site = (module.layer_idx + 1) * SITES_A_LAYER + SCORES
        weights = weights * weight_factors(weights.shape, site, probability, run["step"] * weights.shape[0])
        return (weights @ value).transpose(1, 2), weights
    return attend


def layer_of(name):
    return next(int(part) for part in name.split(".") if part.isdigit())


def with_dropout(folder, family, recipe):
    """Every module that drops something drops what is asked here."""
    run = {"step": -1}
    adapter, dropout = recipe.get("lora"), recipe.get("dropout", {})
    model = adapted(folder, family, adapter) if adapter else load(folder)
    if "attention" in dropout:
        transformers.AttentionInterface.register("drops", attention_that_drops(run, dropout["attention"]))
        model.set_attn_implementation("drops")
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
