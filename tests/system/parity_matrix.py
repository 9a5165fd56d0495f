#!/usr/bin/env python3
"""Runs parity_test over all layouts, shard by shard, and sums up what the shards say.

    nice -n 19 python3 tests/system/parity_matrix.py --binary build/release/tests/parity_test --out /tmp/parity

Each shard leaves shard-<k>.json (a line: cases, passed, the largest error of each quantity over its bound, seconds,
commit) and shard-<k>.log in the folder. Shards that are there already, of the same commit, are not run again: what was
stopped goes on. Exits 1 when a layout failed or a shard is missing.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/tests/parity_test")
    parser.add_argument("--out", required=True, help="folder of the results")
    parser.add_argument("--shards", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="shards at a time")
    parser.add_argument("--commit", help="what the binary was built from; without it this checkout's")
    parser.add_argument("--until", help="HH:MM: start no shard after it")
    return parser.parse_args()


def commit():
    out = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return out.stdout.strip() or "unknown"


def run_shard(options, index, revision):
    name = pathlib.Path(options.out) / f"shard-{index}"
    result_file = name.with_suffix(".json")
    if result_file.exists():
        result = json.loads(result_file.read_text())
        if result.get("commit") == revision and result["shard"] == f"{index}/{options.shards}":
            return result
        result_file.unlink()
    if options.until and time.strftime("%H:%M") >= options.until:
        return None
    environment = dict(os.environ, TERRACE_ALL_LAYOUTS="1", TERRACE_LAYOUTS_SHARD=f"{index}/{options.shards}",
                       TERRACE_LAYOUTS_RESULT=str(result_file))
    with open(name.with_suffix(".log"), "w") as log:
        subprocess.run([options.binary], env=environment, stdout=log, stderr=subprocess.STDOUT)
    if not result_file.exists():
        return None
    result = dict(json.loads(result_file.read_text()), commit=revision)
    result_file.write_text(json.dumps(result) + "\n")
    return result


def summary(results, shards):
    total = {key: sum(result[key] for result in results) for key in
             ("cases", "passed", "trained", "same_programs", "on_threads", "bitwise_equal", "paged", "cpu_seconds")}
    worst = {}
    for result in results:
        for quantity, found in result.get("worst", {}).items():
            if found["ratio"] >= worst.get(quantity, {"ratio": -1})["ratio"]:
                worst[quantity] = found
    lines = [f"{len(results)} of {shards} shards, commit {', '.join(sorted({r['commit'] for r in results}))}: "
             f"{total['passed']} of {total['cases']} layouts passed; {total['trained']} trained, "
             f"{total['same_programs']} have the programs of another, {total['on_threads']} trained on threads over "
             f"Gloo as well, {total['bitwise_equal']} equal to another bit for bit, {total['paged']} with "
             f"pages at second addresses; {total['cpu_seconds']:.0f} s of CPU",
             "", "| quantity | largest error over its bound | layout |", "|---|---|---|"]
    lines += [f"| {name} | {found['ratio']:.3f} | {found['where']} |" for name, found in sorted(worst.items())]
    return "\n".join(lines), total


def main():
    options = arguments()
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    revision = options.commit or commit()
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # Shards are the matrix in its order; with their bits reversed the first ones are spread over all of it.
        order = sorted(range(options.shards), key=lambda index: format(index, "016b")[::-1])
        for result in pool.map(lambda index: run_shard(options, index, revision), order):
            if result is None:
                continue
            results.append(result)
            print(f"shard {result['shard']}: {result['passed']} of {result['cases']} passed, "
                  f"{result['seconds']:.0f} s, {result['cpu_seconds']:.0f} s of CPU", flush=True)
    if not results:
        print("no shard was run")
        return 1
    text, total = summary(results, options.shards)
    print(text)
    return 0 if len(results) == options.shards and total["passed"] == total["cases"] else 1


if __name__ == "__main__":
    sys.exit(main())
