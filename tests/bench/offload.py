#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the resident speed is left when states rest on the host or on NVMe, and what the plan said.

For each batch it trains one model resident, with moments and gradients on the host, with all states on the host, and with all on
NVMe, in rounds, one after the other, and prints medians of the steps' seconds (the first two of each run left out, and those during
which others used the machine: alone.py), as ratios to the resident run of the same round, beside the plan's seconds and ratios. With --throttle both directions of the drive are slowed to that rate, so
that its break-even lies between batches that a small machine trains. Above the break-even tokens of the plan at least 90 % of the
resident speed must be left with states on the host and 85 % with states on NVMe; below, the plan's slowdown must be within 15 % of
the measured one. With --micro-batches a step has so many of each batch, and with --schedule they run in that order; the seconds of
steps whose states are on NVMe must then be within 15 % of the plan's. `terrace profile --refresh` runs before each batch, so that a plan knows the machine of its minutes: the resident
step is all computation, the one on NVMe mostly the drive, so a machine that was slower when it was profiled shows in the ratio.
--profiled leaves that out.

Runs of one kind may differ by more than what offloading costs. So each run is traced too, and "update and waits" is what a step has
besides forward, backward and recomputation: the update, and all that the compute stream waits. "by update and waits" is the resident
speed that is left if nothing but that differs, "with copies" the same if besides each copy between memories stops computation for as
long as it takes, which is what "holds" judges.

  tests/bench/offload.py --bin build/release/bin --nvme /path [--throttle 150e6] [--rounds 3] [--batches 4,32] [--steps 8] [--small]
                         [--sequence 256] [--profiled] [--micro-batches 8] [--schedule breadth_first] [--clip 0]
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
STEP_ERROR = 0.15
OFFLOADS = {"resident": None,
            "optimizer on the host": {"optimizer": "host"},
            "all states on the host": {"parameter": "host", "gradient": "host", "optimizer": "host"},
            "all states on NVMe": {"parameter": "nvme", "gradient": "nvme", "optimizer": "nvme"}}


def spec_of(folder, name, offload, batch, options):
    layout = {"dp": 1, "micro_batch": batch, "recompute": "block"}
    if options.schedule:
        layout["schedule"] = options.schedule
    if offload:
        layout["offload"] = offload
    nvme = {"paths": [str(options.nvme)]}
    if options.throttle:
        nvme["bytes_per_second"] = int(options.throttle)
    model = {"config": SMALL if options.small else CONFIG}
    spec = {"name": name, "model": model, "data": {"train": str(folder / "corpus.txt"), "sequence_length": options.sequence},
            "train": {"steps": options.steps, "trace_steps": options.steps, "global_batch": batch * options.micro_batches, "precision": "fp32", "optimizer": {"lr": 1e-4}, "eval_batches": 1},
            "layout": layout, "resources": {"device_memory": "8GiB", "host_memory": "4GiB", "nvme": nvme},
            "checkpoint": {"directory": str(folder / name)}}
    if options.clip is not None:
        spec["train"]["clip_grad_norm"] = options.clip
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(spec))
    return path


def terrace(binary, *arguments):
    result = subprocess.run([binary / "terrace", *map(str, arguments), "-o", "json"], capture_output=True, text=True, timeout=900)
    if result.returncode != 0:
        raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
    return result.stdout


def parts_of(trace):
    """Medians over the steps of one run, in ms: (update and waits, copies)."""
    events = json.loads(trace.read_text())["traceEvents"]
    streams = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    steps = {}
    for event in events:
        if event["ph"] == "X":
            steps.setdefault(event["args"]["step"], []).append(event)
    rest, copies = [], []
    for _, of_step in sorted(steps.items())[alone.WARM_UP:]:
        end = max(event["ts"] + event["dur"] for event in of_step)
        start = min(event["ts"] for event in of_step)
        passes = sum(event["dur"] for event in of_step
                     if streams[event["tid"]] == "compute" and event["cat"] in ("forward", "backward", "recompute"))
        rest.append((end - start - passes) / 1e3)
        copies.append(sum(event["dur"] for event in of_step if streams[event["tid"]] in ("to_host", "to_device")) / 1e3)
    return statistics.median(rest), statistics.median(copies)


def measured(binary, path):
    """Seconds a step, update and waits, copies."""
    events, steps = alone.run([binary / "terrace", "run", path, "-o", "json"])
    seconds, clean = alone.median_step(steps)
    logs = pathlib.Path(next(event["logs"] for event in events if event["event"] == "done"))
    rest, copies = parts_of(next(logs.glob("**/trace*.json")))
    print(f"  {path.stem}: {seconds:.5f} s, {clean} steps alone, update and waits {rest:.2f} ms, copies {copies:.2f} ms", file=sys.stderr,
          flush=True)
    return seconds, rest, copies


def verdict(name, tokens, ratio, planned, plan, seconds, options):
    if name == "resident":
        return ""
    if options.schedule:
        error = seconds / plan["time"]["step_seconds"] - 1
        return ("yes" if abs(error) <= STEP_ERROR else "no") + f", a step takes {1 + error:.1%} of the plan"
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
    parser.add_argument("--sequence", type=int, default=256, help="tokens of a sample")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a step")
    parser.add_argument("--clip", type=float, help="train.clip_grad_norm of all runs; 0: updates at once")
    parser.add_argument("--schedule", default="", help="layout.schedule of all runs")
    parser.add_argument("--profiled", action="store_true", help="take the profile that is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "corpus.txt").write_text("the king saw a shepherd and gave his brother bread and gold. " * 20000)
        print("| tokens a step | states | s a step | plan, s | of resident | plan says | update and waits, ms | copies, ms | "
              "by update and waits | with copies | break-even tokens of the plan | holds |\n" + "|---" * 12 + "|")
        for batch in map(int, options.batches.split(",")):
            if not options.profiled:
                subprocess.run([options.bin / "terrace", "profile", "--refresh"], check=True, stdout=subprocess.DEVNULL)
            paths = {name: spec_of(folder, f"{name.lower().replace(' ', '-')}-{batch}", offload, batch, options)
                     for name, offload in OFFLOADS.items()}
            plans = {name: json.loads(terrace(options.bin, "plan", path)) for name, path in paths.items()}
            rounds = []
            for number in range(options.rounds):
                rounds.append({})
                for name, path in paths.items():
                    subprocess.run(["rm", "-rf", path.with_suffix("")], check=True)
                    rounds[-1][name] = measured(options.bin, path)
            planned = {name: plan["time"]["step_seconds"] for name, plan in plans.items()}
            medians = {name: [statistics.median(r[name][i] for r in rounds) for i in range(3)] for name in OFFLOADS}
            resident_seconds, resident_rest, _ = medians["resident"]
            for name, (seconds, rest, copies) in medians.items():
                ratio = statistics.median(r["resident"][0] / r[name][0] for r in rounds)
                by_rest, with_copies = (resident_seconds / (resident_seconds + (rest - resident_rest + more) / 1e3) for more in (0, copies))
                tokens, says = batch * options.micro_batches * options.sequence, planned["resident"] / planned[name]
                print(f"| {tokens:,} | {name} | {seconds:.5f} | {planned[name]:.5f} | {100 * ratio:.1f} % | {100 * says:.1f} % | {rest:.2f} | {copies:.2f} | "
                      f"{100 * by_rest:.1f} % | {100 * with_copies:.1f} % | {plans[name].get('break_even_tokens', 0):,.0f} | "
                      f"{verdict(name, tokens, with_copies, says, plans[name], seconds, options)} |", flush=True)


if __name__ == "__main__":
    main()
