#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Offload: the same job with states on the device, on the host and on NVMe prints the same losses, holds less of the device, and
keeps so much of the resident speed (a number without a bound: it depends on the batch)."""
import statistics
import sys

import models
import part

NVME = {"parameter": "nvme", "gradient": "nvme", "optimizer": "nvme"}
HOST = {"parameter": "host", "gradient": "host", "optimizer": "host"}
PLACES = {"device": None, "optimizer on the host": {"optimizer": "host"}, "all on the host": HOST, "all on NVMe": NVME}
WARM = 2  # steps that do not count for speed


def check(checks):
    rehearsal = checks.options.device == "cpu"
    text = part.text_file(checks.folder)
    (checks.folder / "nvme").mkdir()
    config = models.TINY["llama"] if rehearsal else models.llama(1024, 8, 16, 8, 2816)
    resident = None
    for name, offload in PLACES.items():
        spec = models.job(text, config, checks.options.device, steps=8, precision="bf16", sequence=32 if rehearsal else 512,
                          layout={"recompute": "block", **({"offload": offload} if offload else {})},
                          resources={"host_memory": "8GiB", "nvme": {"paths": [str(checks.folder / "nvme")]}} if offload else {})
        job = checks.job(spec).run()
        losses = [step["loss"] for step in job.steps]
        speed = statistics.median(float(step["tokens_per_second"]) for step in job.steps[WARM:])
        arena = next(int(memory["arena_bytes"]) for memory in job.plan["memory"] if memory.get("tier") == "DEVICE")
        if resident is None:
            resident = losses, speed, arena
        same, smaller = losses == resident[0], offload is None or arena < resident[2]
        checks.add(same and smaller, states=name, device_mib=round(arena / 2**20, 1), tokens_per_second=round(speed),
                   of_resident=f"{speed / resident[1]:.0%}", same_losses="yes" if same else "no")


if __name__ == "__main__":
    options = part.parser(__doc__, 80).parse_args()
    sys.exit(part.Part("offload", options, ("states", "device_mib", "tokens_per_second", "of_resident", "same_losses"),
                       exact=True).main(check))
