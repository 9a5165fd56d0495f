#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where a prediction is wrong: a job's operations as planned beside the same operations as measured, in one table.

The job is one of predict.py's; the machine is profiled right before it. Both sides are traces of the same instructions: the plan's
from `terrace plan --trace`, the rank's from train.trace_steps. Of each measured instruction the median over the traced steps after the
first two counts. "1 rank fp32" is the name of a job; --keep-profile takes the profile that is there.

  tests/bench/operations.py --bin build/release/bin --job "dp 2" [--steps 10] [--keep-profile] [--json FILE]
"""
import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import alone
import predict


def slices(path):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def streams(path):
    return {event["tid"]: event["args"]["name"] for event in json.loads(path.read_text())["traceEvents"] if event["name"] == "thread_name"}


def measured_by_instruction(path):
    times = collections.defaultdict(list)
    for event in slices(path):
        if event["args"]["step"] >= alone.WARM_UP:
            times[event["args"]["id"]].append(event["dur"])
    return {identity: statistics.median(values) for identity, values in times.items()}


def run(options, folder):
    (folder / "corpus.txt").write_text("the king saw a shepherd and gave his brother bread and gold. " * 20000)
    path = predict.write_job(folder, options.job, options.steps)
    spec = json.loads(path.read_text())
    spec["train"]["trace_steps"] = options.steps
    path.write_text(json.dumps(spec))
    if not options.keep_profile:
        ranks = predict.JOBS[options.job][3].get("devices_per_node", 1)
        predict.terrace(options.bin, "profile", "--refresh", "--threads", os.cpu_count() // ranks)
    predict.terrace(options.bin, "plan", path, "--trace", folder / "plan.json")
    events, steps = alone.run([options.bin / "terrace", "run", path, "--state-dir", folder / "state", "-o", "json"])
    plan = next(event["plan"] for event in events if event["event"] == "plan")
    return plan["time"]["step_seconds"], *alone.median_step(steps)


def table(folder):
    planned = [event for event in slices(folder / "plan.json")]
    stream_names = streams(folder / "plan.json")
    ranks = sorted((folder / "state").rglob("trace.json"))
    rows = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for rank in ranks:
        number = slices(rank)[0]["pid"]
        stages = {event["pid"] for event in planned}
        stage = number if number in stages else 0
        measured = measured_by_instruction(rank)
        for event in planned:
            if event["pid"] != stage or event["args"]["id"] not in measured:
                continue
            row = rows[(stream_names.get(event["tid"], "?"), event["cat"], event["name"])]
            row[0] += 1
            row[1] += event["dur"] / 1e3 / len(ranks)
            row[2] += measured[event["args"]["id"]] / 1e3 / len(ranks)
    return sorted(([*name, *row] for name, row in rows.items()), key=lambda row: -abs(row[5] - row[4]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--job", choices=predict.JOBS, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--keep-profile", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        predicted, measured, clean = run(options, folder)
        rows = table(folder)
    print(f"step: predicted {predicted:.3f} s, measured {measured:.3f} s, {clean} steps alone\n")
    print("| stream | phase | operation | calls | planned ms | measured ms | planned / measured |\n|---|---|---|---|---|---|---|")
    for stream, phase, name, calls, plan_ms, run_ms in rows:
        print(f"| {stream} | {phase} | {name} | {calls} | {plan_ms:.1f} | {run_ms:.1f} | {plan_ms / run_ms if run_ms else 0:.2f} |")
    for stream in sorted({row[0] for row in rows}):
        plan_ms, run_ms = (sum(row[i] for row in rows if row[0] == stream) for i in (4, 5))
        print(f"| {stream} | | all | | {plan_ms:.1f} | {run_ms:.1f} | {plan_ms / run_ms if run_ms else 0:.2f} |")
    if options.json:
        options.json.write_text(json.dumps({"predicted": predicted, "measured": measured, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
