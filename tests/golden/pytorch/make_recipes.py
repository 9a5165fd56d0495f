#!/usr/bin/env python3
"""Makes recipes.json of this folder: twenty steps of the goldens' llama and gpt2 with AdamW, parameters in groups, rates
that fall from layer to layer, and terms of the loss, in fp32.

    python3 make_recipes.py [--check]     writes the file, or compares with what is there (to 1e-5)

Needs torch, transformers and safetensors. The test suite needs none of them: the file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import fnmatch
import json
import math
import re
import sys

import torch
from make_goldens import HERE, load
from safetensors.torch import load_file

STEPS, CLIP = 20, 1.0
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
# As a job spec writes them; of several groups that a parameter is in the last counts.
RECIPES = {
    "groups": {"groups": {"*norm*": {"lr_scale": 3.0}, "*ln_*": {"lr_scale": 3.0},
                          "*[01].mlp.*": {"lr_scale": 0.25, "weight_decay": 0.02},
                          "*.weight": {"weight_decay": 0.3}, "*embed_tokens*": {"lr_scale": 0.5},
                          "*wte*": {"lr_scale": 0.5, "weight_decay": 0.0}}},
    "layer_decay": {"layer_decay": 0.6},
    "layer_decay_and_groups": {"layer_decay": 0.75, "groups": {"*mlp*": {"lr_scale": 2.0}}},
    "label_smoothing": {"label_smoothing": 0.1},
    "z_loss": {"z_loss": 1e-2},
    "both_terms": {"label_smoothing": 0.2, "z_loss": 1e-3},
    "last_layer_trained": {"groups": {"*": {"frozen": True}, "*.1.*": {"frozen": False}}},
    "first_layer_trained": {"groups": {"*": {"frozen": True}, "*.0.*": {"frozen": False}}},
    "attention_frozen": {"groups": {"*attn*": {"frozen": True}, "*.mlp.*": {"lr_scale": 0.5}}},
    # Of gpt2 the table of positions is trained, and the head is the frozen table.
    "tables_frozen": {"groups": {"*wte*": {"frozen": True}, "*embed_tokens*": {"frozen": True},
                                 "*lm_head*": {"frozen": True}}},
    # Of llama, which has no biases, the norms.
    "biases_trained": {"groups": {"*": {"frozen": True}, "*.bias": {"frozen": False},
                                  "*layernorm*": {"frozen": False}}},
}


def update_of(name, parameter, recipe, layers):
    """(rate, weight decay) of a parameter, None where it is frozen. Layers as in BEiT's optimizer factory."""
    rate, decay = 1.0, ADAMW["weight_decay"] if parameter.dim() >= 2 else 0.0
    if "layer_decay" in recipe:
        layer = re.search(r"\.(?:h|layers)\.(\d+)\.", name)
        embedding = re.search(r"\b(wte|wpe|embed_tokens)\b", name)
        depth = layers - int(layer[1]) if layer else layers + 1 if embedding else 0
        rate = recipe["layer_decay"] ** depth
    matching = [g for pattern, g in recipe.get("groups", {}).items() if fnmatch.fnmatchcase(name, pattern)]
    if matching and matching[-1].get("frozen", False):
        return None
    if matching:
        rate *= matching[-1].get("lr_scale", 1.0)
        decay = matching[-1].get("weight_decay", decay)
    return rate, decay


def loss_of(model, tokens, targets, recipe):
    logits = model(tokens).logits.float()
    logits = logits.reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(logits, targets.reshape(-1),
                                             label_smoothing=recipe.get("label_smoothing", 0.0))
    return loss + recipe.get("z_loss", 0.0) * torch.logsumexp(logits, dim=-1).square().mean()


def train(model, tokens, targets, recipe):
    """On one batch at a constant rate. Clipping multiplies by min(1, clip / norm), as in make_goldens.py."""
    groups = []
    for name, parameter in model.named_parameters():
        update = update_of(name, parameter, recipe, model.config.num_hidden_layers)
        parameter.requires_grad = update is not None
        if update is None:
            continue
        rate, decay = update
        groups.append({"params": [parameter], "lr": rate * ADAMW["lr"], "weight_decay": decay})
    optimizer = torch.optim.AdamW(groups, betas=ADAMW["betas"], eps=ADAMW["eps"])
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = loss_of(model, tokens, targets, recipe)
        loss.backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in trained))
        for parameter in trained:
            parameter.grad.mul_(min(1.0, CLIP / norm))
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path, numbers, worst = HERE / "recipes.json", {}, 0.0
    for name, recipe in RECIPES.items():
        numbers[name] = {"arguments": ADAMW, "clip_grad_norm": CLIP, "recipe": recipe}
        for family in ("gpt2", "llama"):
            batch = load_file(HERE / family / "batch.safetensors")
            losses = train(load(HERE / family), batch["tokens"].long(), batch["targets"].long(), recipe)
            numbers[name][family] = {"losses": losses}
            print(f"{name} {family}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    if not check:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    for name in RECIPES:
        for family in ("gpt2", "llama"):
            pairs = zip(numbers[name][family]["losses"], stored[name][family]["losses"], strict=True)
            worst = max([worst] + [abs(a - b) for a, b in pairs])
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
