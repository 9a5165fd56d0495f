#!/usr/bin/env python3
"""Compares Terrace's attention kernels with PyTorch's scaled_dot_product_attention: same sizes, same threads, interleaved.

    OMP_WAIT_POLICY=passive python3 attention_bench.py build/release/bin/attention_bench --rounds 5

Every round times both sides at every size, one right after the other; the table has the median and the best of the rounds, in
microseconds. PyTorch gets dense q, k, v as autograd would hand them to it; Terrace reads them out of the fused buffer.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

SIZES = [(8, 256, 6, 64), (2, 512, 12, 64), (1, 2048, 12, 64), (1, 1024, 8, 128)]  # batch, sequence, heads, head_dim


def time_terrace(binary, op, size, bf16, threads):
    batch, sequence, heads, head_dim = size
    name = (f"BM_{op}/batch:{batch}/sequence:{sequence}/heads:{heads}/head_dim:{head_dim}/bf16:{bf16}/"
            f"threads:{threads}/")
    command = [binary, f"--benchmark_filter=^{name}", "--benchmark_min_time=0.1", "--benchmark_format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["benchmarks"][0]["real_time"]


def time_torch(run, seconds=0.15):
    run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.mean(times) * 1e6


def torch_runs(size, bf16):
    batch, sequence, heads, head_dim = size
    shape = (batch, heads, sequence, head_dim)
    dtype = torch.bfloat16 if bf16 else torch.float32
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    d_out = torch.randn_like(out)

    def forward():
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def backward():
        torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

    return {"Attention": forward, "AttentionGrad": backward}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| op | type | batch x sequence x heads x head_dim | Terrace us (best) | PyTorch us (best) | ratio |")
    print("|---|---|---|---|---|---|")
    for bf16 in (0, 1):
        for size in SIZES:
            for op, run in torch_runs(size, bf16).items():
                ours, theirs = [], []
                for _ in range(options.rounds):
                    ours.append(time_terrace(options.binary, op, size, bf16, options.threads))
                    theirs.append(time_torch(run))
                a, b = statistics.median(ours), statistics.median(theirs)
                print(f"| {op} | {'bf16' if bf16 else 'f32'} | {' x '.join(map(str, size))} | {a:.0f} ({min(ours):.0f}) | "
                      f"{b:.0f} ({min(theirs):.0f}) | {b / a:.2f} ({min(theirs) / min(ours):.2f}) |", flush=True)


if __name__ == "__main__":
    main()
