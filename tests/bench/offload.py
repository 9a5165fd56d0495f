#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the resident speed is left when states rest on the host or on NVMe, and what the plan said.

For each batch it trains one model resident, with moments and gradients on the host, with all states on the host, and with all on
NVMe, in rounds, one after the other, and prints medians of the steps' seconds (the first two of each run left out, and those during
which others used the machine: alone.py), as ratios to the resident run of the same round, beside the plan's. With --throttle both directions of the drive are slowed to that rate, so
that its break-even lies between batches that a small machine trains. Above the break-even tokens of the plan at least 90 % of the
resident speed must be left with states on the host and 85 % with states on NVMe; below, the plan's slowdown must be within 15 % of
the measured one. `terrace profile` runs first.

  tests/bench/offload.py --bin build/release/bin --nvme /path [--throttle 150e6] [--rounds 3] [--batches 4,32] [--steps 8] [--small]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import alone

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
SMALL = {**CONFIG, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
         "intermediate_size": 768}
KEPT = {"optimizer on the host": 0.9, "all states on the host": 0.9, "all states on NVMe": 0.85}  # of the resident speed
SLOWDOWN_ERROR = 0.15
OFFLOADS = {"resident": None,
            "optimizer on the host": {"optimizer": "host"},
            "all states on the host": {"parameter": "host", "gradient": "host", "optimizer": "host"},
            "all states on NVMe": {"parameter": "nvme", "gradient": "nvme", "optimizer": "nvme"}}


def spec_of(folder, name, offload, batch, options):
    layout = {"dp": 1, "micro_batch": batch, "recompute": "block"}
    if offload:
        layout["offload"] = offload
    nvme = {"paths": [str(options.nvme)]}
    if options.throttle:
        nvme["bytes_per_second"] = int(options.throttle)
    model = {"config": SMALL if options.small else CONFIG}
    spec = {"name": name, "model": model, "data": {"train": str(folder / "corpus.txt"), "sequence_length": 256},
            "train": {"steps": options.steps, "global_batch": batch, "precision": "fp32", "optimizer": {"lr": 1e-4}, "eval_batches": 1},
            "layout": layout, "resources": {"device_memory": "8GiB", "host_memory": "4GiB", "nvme": nvme},
            "checkpoint": {"directory": str(folder / name)}}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(spec))
    return path


def terrace(binary, *arguments):
    result = subprocess.run([binary / "terrace", *map(str, arguments), "-o", "json"], capture_output=True, text=True, timeout=900)
    if result.returncode != 0:
        raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
    return result.stdout


def seconds_of(binary, path):
    _, steps = alone.run([binary / "terrace", "run", path, "-o", "json"])
    seconds, clean = alone.median_step(steps)
    print(f"  {path.stem}: {seconds:.3f} s, {clean} steps alone", file=sys.stderr, flush=True)
    return seconds


def verdict(name, tokens, ratio, planned, plan):
    if name == "resident":
        return ""
    if tokens >= plan.get("break_even_tokens", 0):
        return ("yes" if ratio >= KEPT[name] else "no") + f", above break-even: at least {KEPT[name]:.0%}"
    error = ratio / planned - 1  # slowdowns are the inverse of both
    return ("yes" if abs(error) <= SLOWDOWN_ERROR else "no") + f", below break-even: the plan's slowdown is off by {error:+.1%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--nvme", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batches", default="8,32")
    parser.add_argument("--throttle", type=float, default=0, help="bytes a second of each direction of the drive; 0: as it is")
    parser.add_argument("--small", action="store_true", help="a model of 3 million parameters")
    options = parser.parse_args()
    subprocess.run([options.bin / "terrace", "profile"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "corpus.txt").write_text("the king saw a shepherd and gave his brother bread and gold. " * 20000)
        print("| tokens a step | states | s a step | of resident | plan says | break-even tokens of the plan | holds |\n" + "|---" * 7 + "|")
        for batch in map(int, options.batches.split(",")):
            paths = {name: spec_of(folder, f"{name.lower().replace(' ', '-')}-{batch}", offload, batch, options)
                     for name, offload in OFFLOADS.items()}
            plans = {name: json.loads(terrace(options.bin, "plan", path)) for name, path in paths.items()}
            rounds = []
            for number in range(options.rounds):
                rounds.append({})
                for name, path in paths.items():
                    subprocess.run(["rm", "-rf", path.with_suffix("")], check=True)
                    rounds[-1][name] = seconds_of(options.bin, path)
            resident = plans["resident"]["time"]["step_seconds"]
            for name in OFFLOADS:
                seconds = statistics.median(r[name] for r in rounds)
                ratio = statistics.median(r["resident"] / r[name] for r in rounds)
                plan = plans[name]
                print(f"| {batch * 256:,} | {name} | {seconds:.3f} | {100 * ratio:.1f} % | "
                      f"{100 * resident / plan['time']['step_seconds']:.1f} % | {plan.get('break_even_tokens', 0):,.0f} | "
                      f"{verdict(name, batch * 256, ratio, resident / plan['time']['step_seconds'], plan)} |", flush=True)


if __name__ == "__main__":
    main()
