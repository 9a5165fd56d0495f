#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a published shape in PyTorch as fast as PyTorch does it (torch.compile, scaled_dot_product_attention, fused AdamW, bf16
autocast over f32 weights: 16 bytes of state a parameter), for bench_pytorch.py. Reads one JSON object from standard input, prints
one: tokens a second (median step after the warm-up), peak bytes that the caching allocator held, the last loss. Needs torch."""
import contextlib
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

GROUPED = {"enable_gqa": True}  # heads share keys in the kernel, without copies: from torch 2.5 on


def dimensions(config):
    gpt = config["model_type"] == "gpt2"
    hidden = config["n_embd" if gpt else "hidden_size"]
    heads = config["n_head" if gpt else "num_attention_heads"]
    return (gpt, hidden, heads, config.get("num_key_value_heads", heads), config.get("intermediate_size", 4 * hidden),
            config["n_layer" if gpt else "num_hidden_layers"])


class Norm(nn.Module):
    """RMSNorm, as functions that torch.compile fuses."""

    def __init__(self, hidden, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(hidden)), epsilon

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon) * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gpt, hidden, self.heads, self.kv_heads, inner, _ = dimensions(config)
        self.size = hidden // self.heads
        width = (self.heads + 2 * self.kv_heads) * self.size
        bias = config["model_type"] in ("gpt2", "qwen2")
        norm = (lambda: nn.LayerNorm(hidden)) if self.gpt else (lambda: Norm(hidden, config["rms_norm_eps"]))
        self.norm_1, self.norm_2 = norm(), norm()
        self.qkv = nn.Linear(hidden, width, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=self.gpt)
        self.up = nn.Linear(hidden, inner if self.gpt else 2 * inner, bias=self.gpt)
        self.down = nn.Linear(inner, hidden, bias=self.gpt)

    def forward(self, x, cos, sin):
        batch, sequence, hidden = x.shape
        parts = self.qkv(self.norm_1(x)).split([n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)], dim=2)
        q, k, v = (part.view(batch, sequence, -1, self.size).transpose(1, 2) for part in parts)
        if not self.gpt:
            q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **GROUPED if self.kv_heads != self.heads else {})
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, hidden))
        y = self.up(self.norm_2(x))
        if self.gpt:
            return x + self.down(F.gelu(y, approximate="tanh"))
        gate, up = y.chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, config, sequence, recompute):
        super().__init__()
        gpt, hidden, heads, _, _, layers = dimensions(config)
        self.recompute = recompute
        self.tokens = nn.Embedding(config["vocab_size"], hidden)
        self.positions = nn.Embedding(config["n_positions"], hidden) if gpt else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden) if gpt else Norm(hidden, config["rms_norm_eps"])
        self.head = nn.Linear(hidden, config["vocab_size"], bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        if gpt or config["tie_word_embeddings"]:
            self.head.weight = self.tokens.weight
        size = hidden // heads
        angles = torch.outer(torch.arange(sequence).float(), config.get("rope_theta", 1e4) ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False) if self.recompute else block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    job = json.load(sys.stdin)
    device = job["device"]
    torch.manual_seed(1234)
    torch.set_float32_matmul_precision("highest")
    with torch.device(device):
        model = Model(job["config"], job["sequence"], job["recompute"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, **({"fused": True} if device == "cuda" else {}))
    step_of = torch.compile(model) if job["compile"] else model
    cast = torch.autocast(device, dtype=torch.bfloat16) if job["precision"] == "bf16" else contextlib.nullcontext()
    data = torch.randint(job["config"]["vocab_size"], (job["batch"], job["sequence"] + 1), device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds, loss = [], None
    parts = data.split(job["micro_batch"])
    for _ in range(job["warmup"] + job["steps"]):
        wait()
        begin = time.perf_counter()
        for rows in parts:
            with cast:
                loss = step_of(rows[:, :-1], rows[:, 1:])
            (loss / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({
        "tokens_per_second": job["batch"] * job["sequence"] / statistics.median(seconds[job["warmup"]:]),
        "peak_bytes": torch.cuda.max_memory_reserved() if device == "cuda" else 0, "loss": float(loss), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
