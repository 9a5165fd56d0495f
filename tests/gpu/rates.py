#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What plans are computed with: the rates that Terrace measures of the GPU, twice, each from nothing kept. Two measurements agree
within a tenth, or a plan's time is worth no more. In a rehearsal the CPU is measured, and nothing is judged but that rates are there."""
import json
import math
import subprocess
import sys

import part

WITHIN = 0.10


def measure(checks):
    """One profile as terrace-rank prints it."""
    of = ["--device", "cuda"] if checks.options.device == "cuda" else ["--threads", "1"]
    done = subprocess.run([checks.options.bin / "terrace-rank", "probe", "--brief", "--refresh", *of, "-o", "json"],
                          capture_output=True, text=True, timeout=max(1, checks.left()),
                          env={**checks.environment, "TERRACE_PROFILE_DIR": str(checks.folder)})
    if done.returncode:
        raise RuntimeError(f"terrace-rank probe ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return json.loads(done.stdout)


def figures(profile):
    """By name: the value in the unit, which the name says."""
    return {"bf16 products, TFLOP/s": profile["bf16_flops_per_second"] / 1e12,
            "fp32 products, TFLOP/s": profile["f32_flops_per_second"] / 1e12,
            "memory, GB/s": profile["memory_bytes_per_second"] / 1e9,
            "to the device, GB/s": profile["to_device_bytes_per_second"] / 1e9,
            "to the host, GB/s": profile["to_host_bytes_per_second"] / 1e9,
            "instruction, us": profile["instruction_overhead_seconds"] * 1e6}


def check(checks):
    first, second = figures(measure(checks)), figures(measure(checks))
    for name, one in first.items():
        again = second[name]
        there = all(math.isfinite(value) and value > 0 for value in (one, again))
        apart = abs(again / one - 1) if there else math.inf
        judged = checks.options.device == "cuda" and not name.startswith("instruction")
        checks.add(there and (apart <= WITHIN or not judged), figure=name, first=f"{one:.4g}", again=f"{again:.4g}",
                   apart=f"{apart:.1%}")


if __name__ == "__main__":
    options = part.parser(__doc__, 60).parse_args()
    sys.exit(part.Part("rates", options, ("figure", "first", "again", "apart")).main(check))
