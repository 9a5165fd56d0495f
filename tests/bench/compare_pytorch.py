#!/usr/bin/env python3
"""Terrace against tuned PyTorch on the same machine, threads, model, batch and optimizer, interleaved in one run.

    python3 tests/bench/compare_pytorch.py --bin build/release/bin --python PYTHON_WITH_TORCH [--rounds 3] [--only a-bf16] [--lora 16]

Each round runs, for each configuration, PyTorch (tests/bench/pytorch/train_bench.py with its fastest settings) and then
Terrace (`terrace run`). Speeds are medians over the steps after a warm-up; the ratio is taken within a round and the median
over rounds is reported, so that the noise of a shared machine hits both sides. Peak memory is the resident set's high-water
mark of the training process (for Terrace the rank). Prints a Markdown table.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import array
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CONFIGS = {
    "a": {"model": "gpt-bytes-10m", "sequence": 256, "batch": 8, "vocabulary": 256, "steps": {"fp32": 24, "bf16": 40}},
    "b": {"model": "gpt2", "sequence": 512, "batch": 2, "vocabulary": 50257, "steps": {"fp32": 8, "bf16": 14}},
}
WARMUP = 3
TORCH_ENVIRONMENT = {  # the fastest settings found by tune_bench.py
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "67108864",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
RANK_LIMIT_SECONDS = 300


def run_torch(options, config, precision):
    command = [options.python, str(HERE / "pytorch/train_bench.py"), "--config", config, "--precision", precision,
               "--threads", str(options.threads), "--steps", str(CONFIGS[config]["steps"][precision]),
               "--warmup", str(WARMUP), "--flush-denormal", "--lora", str(options.lora)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=RANK_LIMIT_SECONDS,
                         env={**os.environ, **TORCH_ENVIRONMENT}).stdout
    result = json.loads(out[out.index("{"):])
    return result["tokens_per_second"], result["peak_rss_mib"]


def write_job(folder, options, config, precision):
    c = CONFIGS[config]
    tokens = array.array("H", (random.Random(1).choices(range(c["vocabulary"]), k=200_000)))
    (folder / "tokens.bin").write_bytes(tokens.tobytes())
    (folder / "job.yaml").write_text(f"""name: compare-{config}-{precision}
model: {{config: {c['model']}{f", lora: {{rank: {options.lora}}}" if options.lora else ""}}}
data: {{train: tokens.bin, sequence_length: {c['sequence']}, validation_fraction: 0.1}}
train:
  steps: {c['steps'][precision] + WARMUP}
  global_batch: {c['batch']}
  optimizer: {{lr: 3e-4}}
  precision: {precision}
  eval_batches: 1
layout: {{micro_batch: {c['batch']}}}
resources: {{threads_per_device: {options.threads}}}
checkpoint: {{directory: checkpoints, resume: never}}
""")


def rank_of(state_directory):
    """The pid of the rank whose command line names this state folder."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if "terrace-rank\0run" in command and str(state_directory) in command:
            return int(entry.name)
    return None


def high_water_mib(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match.group(1)) / 1024 if match else 0.0


def run_terrace(options, config, precision):
    with tempfile.TemporaryDirectory(prefix="terrace-compare-") as name:
        folder = pathlib.Path(name)
        write_job(folder, options, config, precision)
        process = subprocess.Popen([f"{options.bin}/terrace", "-o", "json", "run", str(folder / "job.yaml"), "--state-dir",
                                    str(folder / "state")], stdout=subprocess.PIPE, text=True)
        pid, peak, speeds, deadline = None, 0.0, [], time.monotonic() + RANK_LIMIT_SECONDS
        for line in process.stdout:
            event = json.loads(line)
            pid = pid or rank_of(folder / "state")
            peak = max(peak, high_water_mib(pid) if pid else 0.0)
            if event["event"] == "step":
                speeds.append(event["tokens_per_second"])
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGINT)
        if process.wait() != 0:
            sys.exit(f"terrace run failed for {config} {precision}")
        return statistics.median(speeds[WARMUP:]), peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train adapters beside a frozen model (PEFT's)")
    parser.add_argument("--only", action="append", help="config-precision, for example a-bf16")
    options = parser.parse_args()
    cases = options.only or [f"{c}-{p}" for c in CONFIGS for p in ("fp32", "bf16")]
    rounds = {case: [] for case in cases}
    for number in range(options.rounds):
        for case in cases:
            config, precision = case.split("-")
            torch_speed, torch_rss = run_torch(options, config, precision)
            our_speed, our_rss = run_terrace(options, config, precision)
            rounds[case].append((torch_speed, our_speed, torch_rss, our_rss))
            print(f"round {number + 1} {case}: torch {torch_speed:.0f}, terrace {our_speed:.0f} tokens/s, ratio "
                  f"{our_speed / torch_speed:.2f}; RSS {torch_rss:.0f} and {our_rss:.0f} MiB", file=sys.stderr, flush=True)
    print("| config | precision | PyTorch tokens/s | Terrace tokens/s | ratio (min-max) | PyTorch MiB | Terrace MiB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for case, results in rounds.items():
        ratios = [ours / theirs for theirs, ours, _, _ in results]
        theirs, ours, their_rss, our_rss = (statistics.median(column) for column in zip(*results))
        config, precision = case.split("-")
        print(f"| {config} | {precision} | {theirs:.0f} | {ours:.0f} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f}-"
              f"{max(ratios):.2f}) | {their_rss:.0f} | {our_rss:.0f} | {our_rss / their_rss:.2f} |")


if __name__ == "__main__":
    main()
