#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan against driver: what nvidia-smi says that the rank's process holds on the GPU, against the plan's arena and the overhead
that it declares. The driver's number lies within 0.5 % below the sum, and never above. In a rehearsal the kernel's (VmRSS) takes
the driver's place and is only held below the sum."""
import pathlib
import re
import shutil
import subprocess
import sys

import models
import part

WITHIN = 0.005
LOOK_AT_STEP = 5


def driver_bytes(pids):
    """By the driver. In a container it does not know our pids: then all of the GPU's processes count, if there is only one."""
    asked = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                           capture_output=True, text=True, timeout=30, check=True)
    used = {int(pid): int(mib) * 2**20 for pid, mib in re.findall(r"(\d+),\s*(\d+)", asked.stdout)}
    ours = {pid: size for pid, size in used.items() if pid in pids}
    if not ours and len(used) == len(pids):
        ours = used
    if not ours:
        raise part.Skip(f"nvidia-smi lists {len(used)} processes and none of the ranks: the driver's number cannot be read here")
    return max(ours.values())


def resident_bytes(pids):
    return max(int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024
               for pid in pids)


def observe(checks, name, spec, rehearsal):
    job = checks.job(spec)
    measured, warned = 0, False
    try:
        for event in job.events():
            warned = warned or event.get("event") == "warning"  # the rank has compared them too
            if event.get("event") == "step" and int(event["step"]) == LOOK_AT_STEP:
                pids = job.rank_pids()
                measured = resident_bytes(pids) if rehearsal else driver_bytes(pids)
    finally:
        job.end()
    memory = job.plan["memory"][0]
    arena, outside = int(memory["arena_bytes"]), int(memory["external_bytes"])
    difference = measured / (arena + outside) - 1
    checks.add(measured > 0 and not warned and (difference <= 0 if rehearsal else -WITHIN <= difference <= 0), job=name,
               arena_mib=round(arena / 2**20, 1), declared_mib=round(outside / 2**20, 1), measured_mib=round(measured / 2**20, 1),
               difference=f"{difference:+.2%}")


def check(checks):
    rehearsal = checks.options.device == "cpu"
    if not rehearsal and not shutil.which("nvidia-smi"):
        raise part.Skip("nvidia-smi is not installed: nobody else knows what the driver counts")
    text = part.text_file(checks.folder)
    cases = {"llama fp32": ("llama", {}), "llama bf16": ("llama", {"precision": "bf16"}),
             "gpt bf16, caching": ("gpt", {"precision": "bf16", "layout": {"allocator": "caching"}}),
             "gpt bf16, expandable": ("gpt", {"precision": "bf16", "layout": {"allocator": "expandable"}})}
    if not rehearsal:
        cases["gpt2 124M bf16"] = (None, {"precision": "bf16", "sequence": 1024, "batch": 16})
    for name, (family, changes) in cases.items():
        config = (models.TINY if rehearsal else models.SMALL)[family] if family else models.PUBLISHED["gpt2-124m"]
        observe(checks, name, models.job(text, config, checks.options.device, steps=2 * LOOK_AT_STEP, **changes), rehearsal)


if __name__ == "__main__":
    options = part.parser(__doc__, 60).parse_args()
    sys.exit(part.Part("memory", options, ("job", "arena_mib", "declared_mib", "measured_mib", "difference")).main(check))
