#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models beyond the device, with real sizes: takes most of ten minutes and is run by name.

7b: the largest of the shapes below whose states the device holds is trained resident and with gradients and optimizer on the
host, with as many tokens a step as the plan's break-even asks for: at least 90 % of the resident speed.
13b: 13 B parameters at 16 bytes each (208 GB) take whole fine-tuning steps on one device, with what it cannot hold on the host
and on NVMe. A rehearsal takes the same steps with a tiny model and a device to match, and judges no speed."""
import json
import math
import pathlib
import statistics
import subprocess
import sys

import models
import part

KEPT = 0.9                # of the resident speed, above break-even
STATE_BYTES = 16          # a parameter: weight, gradient and two moments in fp32
HOST_SHARE = 0.7          # of what this machine has free, for what is offloaded: caches, ranks and Python need the rest
RESIDENT = ("qwen2.5-7b", "qwen2.5-3b", "qwen2.5-1.5b")
WARMUP, STEPS = 1, 2
ABOVE = 1.25              # times the break-even: the plan of the run may ask for a little more
TRIES = 4                 # to find a step above break-even
ON_HOST = {"gradient": "host", "optimizer": "host"}
# Of 13 B parameters 138 GiB on the device, 67 on a host of 128 and 24 on NVMe, by the plan for an H200.
ON_THREE_TIERS = {"gradient": {"device": 0.375, "host": 0.625}, "optimizer": {"device": 0.375, "host": 0.375, "nvme": 0.25}}


def sequence_of(checks):
    return 32 if checks.options.device == "cpu" else 1024


def free_host_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise part.Skip("/proc/meminfo says nothing of MemAvailable")


def plan_of(checks, spec):
    """The plan, or None and why it does not fit."""
    path = checks.folder / "asked.yaml"
    path.write_text(json.dumps(spec))
    asked = subprocess.run([checks.options.bin / "terrace", "-o", "json", "plan", path], capture_output=True, text=True,
                           timeout=max(checks.left(), 1), check=False, env=checks.environment)
    if asked.returncode == 5:
        return None, (asked.stderr or asked.stdout).strip()[:300]
    if asked.returncode != 0:
        raise RuntimeError(f"terrace plan ended with {asked.returncode}: {(asked.stderr or asked.stdout).strip()[-1000:]}")
    answer = json.loads(asked.stdout)
    return answer.get("plan", answer), ""


def spec_of(checks, config, batch, micro_batch, **changes):
    spec = models.job(part.text_file(checks.folder), config, checks.options.device, sequence=sequence_of(checks), batch=batch,
                      steps=WARMUP + STEPS, precision="bf16", lr=1e-5, **changes)
    spec["layout"]["micro_batch"] = micro_batch
    spec["checkpoint"] = {"directory": str(checks.folder / "checkpoints"), "resume": "never", "save": "never"}
    return spec


def bytes_of(plan, tier):
    return sum(int(memory["arena_bytes"]) for memory in plan["memory"] if memory["tier"] == tier)


def speed_of(job):
    return statistics.median(float(step["tokens_per_second"]) for step in job.steps[WARMUP:])


def resident_and_offloaded(checks):
    rehearsal = checks.options.device == "cpu"
    micro_batch = 2 if rehearsal else 8
    host = {"host_memory": int(free_host_bytes() * HOST_SHARE)}
    shapes = {"tiny": models.TINY["llama"]} if rehearsal else {name: models.PUBLISHED[name] for name in RESIDENT}
    for name, config in shapes.items():
        fits, why = plan_of(checks, spec_of(checks, config, micro_batch, micro_batch))
        offloaded, why = plan_of(checks, spec_of(checks, config, micro_batch, micro_batch, layout={"offload": ON_HOST},
                                                 resources=host)) if fits else (None, why)
        if fits and offloaded:
            break
        checks.notes.append(f"{name}: not taken, {why}")
    else:
        raise part.Skip(f"no shape fits both ways: {why}")
    # A step of more micro-batches may ask for more: until its own plan is content.
    batch = micro_batch
    for _ in range(TRIES):
        if batch * sequence_of(checks) >= offloaded["break_even_tokens"]:
            break
        batch = micro_batch * math.ceil(ABOVE * offloaded["break_even_tokens"] / (micro_batch * sequence_of(checks)))
        offloaded, why = plan_of(checks, spec_of(checks, config, batch, micro_batch, layout={"offload": ON_HOST}, resources=host))
        if not offloaded:
            raise RuntimeError(f"{name} fits with {micro_batch} sequences a step and not with {batch}: {why}")
    resident = checks.job(spec_of(checks, config, batch, micro_batch)).run()
    states = checks.job(spec_of(checks, config, batch, micro_batch, layout={"offload": ON_HOST}, resources=host)).run()
    ratio = speed_of(states) / speed_of(resident)
    tokens = batch * sequence_of(checks)
    above = tokens >= states.plan["break_even_tokens"]
    if not above:
        checks.notes.append(f"the plan of the whole step asks for {states.plan['break_even_tokens']:,.0f} tokens: below break-even")
    checks.add(None if rehearsal else above and ratio >= KEPT, job=f"{name}, states on the host", tokens=tokens,
               device_gib=round(bytes_of(states.plan, "DEVICE") / 2**30, 3), host_gib=round(bytes_of(states.plan, "HOST") / 2**30, 3),
               nvme_gib=0, tokens_per_second=round(speed_of(states)), of_resident=f"{ratio:.0%}")


def beyond_the_device(checks):
    rehearsal = checks.options.device == "cpu"
    config = models.llama(256, 8, 8, 8, 768) if rehearsal else models.PUBLISHED["llama-13b"]
    states = STATE_BYTES * models.parameters_of(config)[0]
    nvme = checks.folder / "nvme"
    nvme.mkdir()
    resources = {"host_memory": int(free_host_bytes() * HOST_SHARE), "nvme": {"paths": [str(nvme)]}}
    batch, micro_batch = (8, 2) if rehearsal else (64, 8)
    spec = spec_of(checks, config, batch, micro_batch, resources=resources, layout={"offload": ON_THREE_TIERS})
    plan, why = plan_of(checks, spec)
    if not plan:
        raise part.Skip(why)
    job = checks.job(spec).run()
    held = sum(int(memory.get("max_by_class", {}).get(name, 0)) for memory in plan["memory"]
               for name in ("parameter", "gradient", "optimizer"))
    done = len(job.steps) == WARMUP + STEPS and all(math.isfinite(float(step["loss"])) and not step.get("skipped")
                                                     for step in job.steps)
    tiers = {tier: bytes_of(plan, tier) for tier in ("DEVICE", "HOST", "NVME")}
    checks.add(done and held >= states and all(tiers.values()), job=f"{states / 1e9:.3g} GB of states, {len(job.steps)} steps",
               tokens=batch * sequence_of(checks), device_gib=round(tiers["DEVICE"] / 2**30, 3),
               host_gib=round(tiers["HOST"] / 2**30, 3), nvme_gib=round(tiers["NVME"] / 2**30, 3),
               tokens_per_second=round(speed_of(job)), of_resident="")


if __name__ == "__main__":
    parsed = part.parser(__doc__, 560)
    parsed.add_argument("--shape", action="append", choices=("7b", "13b"), help="only this one; may be repeated")
    options = parsed.parse_args()
    bodies = {"7b": resident_and_offloaded, "13b": beyond_the_device}

    def check(checks):
        for shape in options.shape or bodies:
            bodies[shape](checks)

    sys.exit(part.Part("large", options, ("job", "tokens", "device_gib", "host_gib", "nvme_gib", "tokens_per_second",
                                          "of_resident")).main(check))
