#!/usr/bin/env python3
"""Makes frozen_codes.json of this folder: twenty steps of the goldens' llama with AdamW where the matrices of the layers are frozen and are
what bitsandbytes decodes of its own NF4 codes of them, in fp32.

    python3 make_frozen_codes.py [--check]     writes the file, or compares with what is there (to 1e-5)

The rows of that model are made of whole blocks of 16 elements alone. bitsandbytes knows no blocks so small: each is padded with zeros to
one of 64, which changes neither its scale nor its codes.

Needs torch, transformers, safetensors and bitsandbytes 0.50.2. The test suite needs none of them: the file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import sys

import torch
from bitsandbytes import functional
from make_goldens import HERE, load
from safetensors.torch import load_file

STEPS, CLIP, BLOCK, PADDED = 20, 1.0, 16, 64
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}


def decoded(weight):
    blocks = torch.nn.functional.pad(weight.reshape(-1, BLOCK), (0, PADDED - BLOCK)).contiguous()
    codes, state = functional.quantize_4bit(blocks, blocksize=PADDED, compress_statistics=False, quant_type="nf4")
    return functional.dequantize_4bit(codes, state)[:, :BLOCK].reshape(weight.shape)


def train(model, tokens, targets):
    """On one batch at a constant rate. Clipping multiplies by min(1, clip / norm), as in make_goldens.py."""
    groups = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not name.endswith("proj.weight")
        if not parameter.requires_grad:
            parameter.data = decoded(parameter.data)
            continue
        groups.append({"params": [parameter], "weight_decay": ADAMW["weight_decay"] if parameter.dim() >= 2 else 0.0})
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"])
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        logits = model(tokens).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
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
    path = HERE / "frozen_codes.json"
    batch = load_file(HERE / "llama" / "batch.safetensors")
    losses = train(load(HERE / "llama"), batch["tokens"].long(), batch["targets"].long())
    print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    if not check:
        path.write_text(json.dumps({"arguments": ADAMW, "clip_grad_norm": CLIP, "losses": losses}, indent=1) + "\n")
        return
    worst = max(abs(a - b) for a, b in zip(losses, json.loads(path.read_text())["losses"], strict=True))
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
