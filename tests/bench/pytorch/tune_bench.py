#!/usr/bin/env python3
"""Finds the fastest settings of train_bench.py on this machine: tries each in its own process, all of them in turn, in
several rounds, so that a busy minute hits every setting alike. Prints a table, the fastest first.

    python3 tune_bench.py --config b --precision bf16 --threads 2 --rounds 3

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

TRAIN = pathlib.Path(__file__).resolve().parent / "train_bench.py"
# Large allocations stay in the heap: glibc otherwise maps and unmaps (and the kernel zeroes) every activation each step.
KEEP = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
        "MALLOC_TOP_PAD_": "268435456"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
PINNED = {"GOMP_CPU_AFFINITY": "0-63"}
SETTINGS = {  # name: (environment, extra arguments)
    "default": ({}, ["--optimizer", "foreach"]),
    "fused": ({}, []),
    "fused, passive": (PASSIVE, []),
    "fused, passive, keep": (PASSIVE | KEEP, []),
    "fused, passive, keep, huge": (PASSIVE | KEEP | HUGE, []),
    "fused, keep, huge, pinned": (KEEP | HUGE | PINNED, []),
    "fused, passive, keep, huge, flush": (PASSIVE | KEEP | HUGE, ["--flush-denormal"]),
    "fused, passive, keep, huge, compile": (PASSIVE | KEEP | HUGE, ["--compile"]),
}


def measure(options, environment, extra):
    command = [sys.executable, str(TRAIN), "--config", options.config, "--precision",
               options.precision, "--threads", str(options.threads), "--steps",
               str(options.steps), "--warmup", "2"]
    done = subprocess.run(command + extra, env=os.environ | environment, capture_output=True,
                          text=True, timeout=options.timeout, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1:]
    return json.loads(done.stdout.splitlines()[-1]), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", choices=["a", "b"], default="a")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one process")
    parser.add_argument("--only", help="settings whose name holds this text")
    options = parser.parse_args()
    results = {name: [] for name in SETTINGS if not options.only or options.only in name}
    for _ in range(options.rounds):
        for name in list(results):
            result, error = measure(options, *SETTINGS[name])
            if result is None:
                print(f"{name}: failed: {error}", file=sys.stderr)
                del results[name]
                continue
            results[name].append(result)
            print(f"{name}: {result['tokens_per_second']} tokens/s, "
                  f"{result['tokens_per_cpu_second']} a CPU second", file=sys.stderr, flush=True)
    print(f"config {options.config}, {options.precision}, {options.threads} threads: tokens/s "
          "(median of rounds; best step), tokens per CPU second, peak RSS")
    median = lambda runs, key: statistics.median(r[key] for r in runs)
    for name, runs in sorted(results.items(), key=lambda i: -median(i[1], "tokens_per_second")):
        print(f"{median(runs, 'tokens_per_second'):9.1f} "
              f"{max(r['best_tokens_per_second'] for r in runs):9.1f} "
              f"{median(runs, 'tokens_per_cpu_second'):9.1f} "
              f"{median(runs, 'peak_rss_mib'):7.0f} MiB  {name}")


if __name__ == "__main__":
    main()
