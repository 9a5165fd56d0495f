#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured step times of jobs that differ in layout and precision, on this machine.

Each round takes every job once, right after measuring the machine for its ranks (`terrace profile --refresh`), since a shared machine
changes its speed within minutes; a job's plan is the one that its own
run printed, and its time the median of those of its steps after the first two during which nobody else used the machine (alone.py).
Right after the run the machine is measured once more: where the plan is then another by more than 5 %, the machine has changed meanwhile
and the pair says nothing of the model; the job is run again, with that second profile as its first, --tries times at most, and what is
still unsteady then is marked so and kept (with --tries 1 nothing is run again). The error is taken within a round and the median over rounds is reported.
Of two jobs whose measured times differ by more than 15 % the plan must rank them as measured. How many steps were alone is printed:
where they are too few, the figure is of all steps, and of the machine rather than of the model.

  tests/bench/predict.py --bin build/release/bin [--rounds 3] [--steps 10] [--tries 4] [--only "dp 2,bf16"] [--json results.json]
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import alone

LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6,
         "num_key_value_heads": 6, "head_dim": 64, "intermediate_size": 1024, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
GPT = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 256, "n_embd": 384, "n_layer": 6, "n_head": 6,
       "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}
ONE = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "recompute": "none"}
TWO = {"devices_per_node": 2}
RANKED = 1.15
STEADY = 0.05  # how far two plans of one job may differ that were made before and after it ran

# name -> model, precision, layout, resources
JOBS = {
    "1 rank fp32": (LLAMA, "fp32", {**ONE, "micro_batch": 8}, {}),
    "1 rank bf16": (LLAMA, "bf16", {**ONE, "micro_batch": 8}, {}),
    "1 rank gpt fp32, 2 micro-batches": (GPT, "fp32", {**ONE, "micro_batch": 4}, {}),
    "1 rank recompute block": (LLAMA, "fp32", {**ONE, "micro_batch": 8, "recompute": "block"}, {}),
    "1 rank optimizer on the host": (LLAMA, "fp32", {**ONE, "micro_batch": 8, "offload": {"optimizer": "host"}}, {}),
    "dp 2": (LLAMA, "fp32", {**ONE, "dp": 2, "micro_batch": 4}, TWO),
    "dp 2 zero 1 bf16": (LLAMA, "bf16", {**ONE, "dp": 2, "micro_batch": 4, "zero": 1}, TWO),
    "dp 2 zero 2, 2 micro-batches": (LLAMA, "fp32", {**ONE, "dp": 2, "micro_batch": 2, "zero": 2}, TWO),
    "dp 2 zero 3": (LLAMA, "fp32", {**ONE, "dp": 2, "micro_batch": 4, "zero": 3}, TWO),
    "tp 2": (LLAMA, "fp32", {**ONE, "tp": 2, "micro_batch": 8}, TWO),
    "pp 2, 4 micro-batches": (GPT, "fp32", {**ONE, "pp": 2, "micro_batch": 2}, TWO),
}


def terrace(binary, *arguments):
    result = subprocess.run([binary / "terrace", *map(str, arguments)], capture_output=True, text=True, timeout=1800)
    if result.returncode != 0:
        raise SystemExit(f"terrace {' '.join(map(str, arguments))}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout


def write_job(folder, name, steps):
    model, precision, layout, resources = JOBS[name]
    spec = {"name": "predict", "model": {"config": model}, "data": {"train": str(folder / "corpus.txt"), "sequence_length": 256},
            "train": {"steps": steps, "global_batch": 8, "precision": precision, "optimizer": {"lr": 1e-4}, "eval_batches": 1},
            "layout": layout, "resources": {"device_memory": "4GiB", "host_memory": "2GiB", **resources},
            "checkpoint": {"directory": str(folder / "checkpoint"), "resume": "never"}}
    path = folder / "job.yaml"
    path.write_text(json.dumps(spec))
    return path


def run_job(options, folder, name):
    subprocess.run(["rm", "-rf", folder / "checkpoint"], check=True)
    path = write_job(folder, name, options.steps)
    events, steps = alone.run([options.bin / "terrace", "run", path, "--state-dir", folder / "state", "-o", "json"])
    plan = next(event["plan"] for event in events if event["event"] == "plan")
    subprocess.run(["rm", "-rf", folder / "state"], check=True)
    return (plan["time"]["step_seconds"], *alone.median_step(steps))


def profile(options, name):
    ranks = JOBS[name][3].get("devices_per_node", 1)
    terrace(options.bin, "profile", "--refresh", "--threads", os.cpu_count() // ranks)


def run_steadily(options, folder, name):
    """Predicted and measured seconds, steps that were alone, and whether the machine was the same before and after."""
    profile(options, name)
    for _ in range(options.tries):
        predicted, measured, clean = run_job(options, folder, name)
        profile(options, name)
        after = json.loads(terrace(options.bin, "plan", folder / "job.yaml", "-o", "json"))["time"]["step_seconds"]
        steady = abs(after / predicted - 1) <= STEADY
        few = "" if clean >= alone.CLEAN_STEPS else ", of all steps"
        print(f"  {name}: predicted {predicted:.3f} s, measured {measured:.3f} s ({100 * (predicted / measured - 1):+.1f} %), planned after it "
              f"{after:.3f} s{'' if steady else ': the machine changed'}, {clean} steps alone{few}", flush=True)
        if steady:
            break
    return predicted, measured, clean, steady


def run_round(options, folder, names):
    return {name: run_steadily(options, folder, name) for name in names}


def ordering(names, predicted, measured):
    """Pairs that differ by more than 15 %, and those of them that the plan ranks the other way round."""
    pairs = [(a, b) if measured[a] > measured[b] else (b, a) for a, b in itertools.combinations(names, 2)]
    apart = [(slow, fast) for slow, fast in pairs if measured[slow] > RANKED * measured[fast]]
    return apart, [(slow, fast) for slow, fast in apart if predicted[slow] <= predicted[fast]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tries", type=int, default=4, help="runs of a job until the machine was the same before and after")
    parser.add_argument("--only", default="", help="jobs whose names contain one of these, separated by commas")
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures")
    options = parser.parse_args()
    names = [name for name in JOBS if any(part in name for part in options.only.split(","))]
    rounds = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "corpus.txt").write_text("the king saw a shepherd and gave his brother bread and gold. " * 20000)
        for number in range(options.rounds):
            print(f"round {number + 1}:", flush=True)
            rounds.append(run_round(options, folder, names))
    predicted = {name: statistics.median(r[name][0] for r in rounds) for name in names}
    measured = {name: statistics.median(r[name][1] for r in rounds) for name in names}
    print("\n| job | predicted s | measured s | error | rounds on a steady machine |\n|---|---|---|---|---|")
    errors = {name: statistics.median(r[name][0] / r[name][1] - 1 for r in rounds) for name in names}
    for name in names:
        print(f"| {name} | {predicted[name]:.3f} | {measured[name]:.3f} | {100 * errors[name]:+.1f} % | {sum(r[name][3] for r in rounds)} of {len(rounds)} |")
    worst = max(names, key=lambda name: abs(errors[name]))
    mean = statistics.mean(abs(error) for error in errors.values())
    print(f"\nmean {100 * mean:.1f} %, worst {100 * errors[worst]:+.1f} % ({worst})")
    apart, wrong = ordering(names, predicted, measured)
    print(f"{len(apart)} pairs differ by more than 15 %; the plan ranks {len(wrong)} of them wrong" +
          "".join(f"\n  {slow} is slower than {fast}" for slow, fast in wrong))
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "errors": errors}, indent=1))


if __name__ == "__main__":
    main()
