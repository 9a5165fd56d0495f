#!/usr/bin/env python3
"""Trains a GPT-2 style model in plain PyTorch as fast as PyTorch can, to compare with.

    python3 train_bench.py --config a --precision bf16 --threads 2 --steps 20

Prints one JSON object: tokens per second (median step after warm-up), tokens per second of CPU time (steadier on a machine
that does other work too; meaningful with OMP_WAIT_POLICY=passive), loss, peak resident memory, and the settings. The
configurations are (a) 6 layers x 384, sequence 256, batch 8, byte vocabulary, and (b) GPT-2 124M, sequence 512, batch 2.
Same work as a Terrace job: tied embeddings, AdamW on every parameter, clipping of the global norm, mean loss over tokens.

Needs torch only, with --lora peft as well. Environment that matters is set by tune_bench.py, which tries the choices and reports the fastest.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import contextlib
import json
import os
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

CONFIGS = {
    "a": {"layers": 6, "hidden": 384, "heads": 6, "sequence": 256, "batch": 8, "vocab": 256},
    "b": {"layers": 12, "hidden": 768, "heads": 12, "sequence": 512, "batch": 2, "vocab": 50257,
          "positions": 1024},
}


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.ln_2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, sequence, hidden = x.shape
        split = (batch, sequence, self.heads, hidden // self.heads)
        q, k, v = (part.view(split).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(hidden, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, sequence, vocab, positions=None, **_):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(positions or sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def adapt(model, rank, precision):
    """Low-rank adapters in f32 beside all linear layers; what is frozen rests in what products read."""
    import peft
    if precision == "bf16":
        model.to(torch.bfloat16)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["qkv", "out", "up", "down"])
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def make_optimizer(model, kind):
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() >= 2]
    others = [p for p in trained if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=kind == "fused",
                             foreach=kind == "foreach")


def cast(precision):
    if precision == "bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def run(options):
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    if options.flush_denormal:
        torch.set_flush_denormal(True)
    config = CONFIGS[options.config]
    model = Gpt(**config)
    if options.lora:
        adapt(model, options.lora, options.precision)
    optimizer = make_optimizer(model, options.optimizer)
    step_model = torch.compile(model) if options.compile else model
    shape = (config["batch"], config["sequence"] + 1)
    seconds, cpu_seconds, loss = [], [], None
    for _ in range(options.warmup + options.steps):
        stream = torch.randint(0, config["vocab"], shape)
        start, cpu_start = time.perf_counter(), time.process_time()
        with cast(options.precision):
            loss = step_model(stream[:, :-1].contiguous(), stream[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return config, seconds[options.warmup:], cpu_seconds[options.warmup:], loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", choices=CONFIGS, default="a")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--optimizer", choices=["fused", "foreach", "loop"], default="fused")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (Inductor, C++)")
    parser.add_argument("--flush-denormal", action="store_true")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train PEFT's adapters beside a frozen model")
    options = parser.parse_args()
    config, seconds, cpu_seconds, loss = run(options)
    tokens = config["batch"] * config["sequence"]
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    environment = {k: v for k, v in os.environ.items()
                   if k.startswith(("OMP_", "GOMP_", "LD_PRELOAD", "MALLOC_", "GLIBC_", "ONEDNN_"))}
    print(json.dumps({"torch": torch.__version__} | vars(options) | {
        "tokens_per_second": round(tokens / statistics.median(seconds), 1),
        "best_tokens_per_second": round(tokens / min(seconds), 1),
        "tokens_per_cpu_second": round(tokens / statistics.median(cpu_seconds), 1),
        "step_seconds": round(statistics.median(seconds), 4),
        "peak_rss_mib": round(peak_kib / 1024),
        "loss": round(loss, 4),
        "environment": environment,
    }))


if __name__ == "__main__":
    main()
