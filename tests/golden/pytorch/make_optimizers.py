#!/usr/bin/env python3
"""Makes optimizers.json of this folder: twenty steps of the goldens' llama and gpt2 by each rule, with the implementation
that others use (torch.optim; Lion of lion-pytorch, Adafactor of transformers, CAME of came-pytorch, AdaLomo of lomo-optim),
in fp32. torch's Muon iterates in bf16 and takes matrices alone: here it iterates in fp32, and AdamW updates what is no matrix
of a layer.

    python3 make_optimizers.py [--check]     writes the file, or compares with what is there (to 1e-5)

Needs torch, transformers, safetensors, lion-pytorch, came-pytorch and lomo-optim. The test suite needs none of them: the file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import sys

import torch
from came_pytorch import CAME
from lion_pytorch import Lion
from lomo_optim import AdaLomo
from make_goldens import HERE, forward, load
from safetensors.torch import load_file
from transformers.optimization import Adafactor

STEPS, CLIP = 20, 1.0
# Some gradients, as those of gpt2's key biases, are nothing but rounding; the usual 1e-30 would make steps of them.
FACTORED = {"eps": [1e-10, 1e-3], "clip_threshold": 1.0, "decay_rate": -0.8, "weight_decay": 0.1}
# By the name in kernels/optimizer_rule.h, and what is behind it for another choice of options: what the rule is given, and the
# class that has it.
RULES = {
    "adamw": ({"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}, torch.optim.AdamW),
    "adam": ({"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}, torch.optim.Adam),
    "sgd": ({"lr": 0.2, "weight_decay": 0.01}, torch.optim.SGD),
    "momentum": ({"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}, torch.optim.SGD),
    "nesterov": ({"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, torch.optim.SGD),
    "muon": (
        {
            "lr": 2e-3,
            "momentum": 0.95,
            "weight_decay": 0.1,
            "ns_steps": 5,
            "adjust_lr_fn": "match_rms_adamw",
            "betas": [0.9, 0.95],
            "eps": 1e-6,
        },
        None,
    ),
    "lion": ({"lr": 5e-4, "betas": [0.9, 0.99], "weight_decay": 0.1}, Lion),
    "adafactor": ({**FACTORED, "lr": 2e-3, "beta1": None, "scale_parameter": True, "relative_step": False}, Adafactor),
    "adafactor.moment": ({**FACTORED, "lr": 2e-3, "beta1": 0.9, "scale_parameter": False, "relative_step": False}, Adafactor),
    "adafactor.relative": ({**FACTORED, "lr": None, "beta1": None, "scale_parameter": True, "relative_step": True}, Adafactor),
    # Adafactor without a moment, each tensor as soon as it has its gradient.
    "adafactor.adalomo": ({"lr": 2e-3, "eps": [1e-10, 1e-3], "clip_threshold": 1.0, "decay_rate": -0.8, "weight_decay": 0.0,
                           "scale_parameter": True}, AdaLomo),
    "came": (
        {"lr": 2e-4, "betas": [0.9, 0.999, 0.9999], "eps": [1e-10, 1e-16], "clip_threshold": 1.0, "weight_decay": 0.1},
        CAME,
    ),
}


class ExactMuon(torch.optim.Muon):
    """Its iteration in fp32."""

    def step(self, closure=None):
        bfloat16 = torch.bfloat16
        torch.bfloat16 = torch.float32
        try:
            return super().step(closure)
        finally:
            torch.bfloat16 = bfloat16


def muon(model, arguments):
    """Matrices of layers, and all else, where tables decay and vectors do not."""
    of_layers = [p for name, p in model.named_parameters() if p.dim() == 2 and (".h." in name or ".layers." in name)]
    taken = {id(p) for p in of_layers}
    others = [p for p in model.parameters() if id(p) not in taken]
    decay = arguments["weight_decay"]
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    names = ("lr", "momentum", "weight_decay", "ns_steps", "adjust_lr_fn")
    return [
        ExactMuon(of_layers, **{name: arguments[name] for name in names}),
        torch.optim.AdamW(groups, lr=arguments["lr"], betas=arguments["betas"], eps=arguments["eps"]),
    ]


def train_at_once(model, tokens, targets, arguments):
    """AdaLomo steps inside the backward pass, without clipping, and would have its states on a GPU."""
    cuda, torch.Tensor.cuda = torch.Tensor.cuda, lambda tensor: tensor
    try:
        names = ("eps", "clip_threshold", "decay_rate", "weight_decay")
        optimizer = AdaLomo(model, lr=arguments["lr"], loss_scale=0, **{name: arguments[name] for name in names})
    finally:
        torch.Tensor.cuda = cuda
    losses = []
    for _ in range(STEPS):
        _, loss = forward(model, tokens, targets)
        losses.append(loss.item())
        optimizer.fused_backward(loss, arguments["lr"])
    return {"losses": losses}


def train(model, tokens, targets, rule):
    """On one batch at a constant rate. Clipping multiplies by min(1, clip / norm), as in make_goldens.py."""
    arguments, make = RULES[rule]
    if make is AdaLomo:
        return train_at_once(model, tokens, targets, arguments)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    if make is None:
        optimizers = muon(model, arguments)
    else:
        optimizers = [make([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], **arguments)]
    losses, norms = [], []
    for _ in range(STEPS):
        model.zero_grad()
        _, loss = forward(model, tokens, targets)
        loss.backward()
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, CLIP / norm))
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return {"losses": losses, "grad_norms": norms}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path, numbers, worst = HERE / "optimizers.json", {}, 0.0
    for rule, (arguments, make) in RULES.items():
        numbers[rule] = {"arguments": arguments, "clip_grad_norm": 0.0 if make is AdaLomo else CLIP}
        for family in ("gpt2", "llama"):
            batch = load_file(HERE / family / "batch.safetensors")
            numbers[rule][family] = train(load(HERE / family), batch["tokens"].long(), batch["targets"].long(), rule)
            losses = numbers[rule][family]["losses"]
            print(f"{rule} {family}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    if not check:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    for rule in RULES:
        for family in ("gpt2", "llama"):
            pairs = zip(numbers[rule][family]["losses"], stored[rule][family]["losses"], strict=True)
            worst = max([worst] + [abs(a - b) for a, b in pairs])
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
