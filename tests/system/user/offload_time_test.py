#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps that wait for a slow drive take as long as their plan says, where each gradient is used up at once and where all wait for the
norm; and what is used up at once never goes to the drive.

The drive is slowed until a step is mostly its time: what others leave of the processors matters little then.
"""
import statistics
import unittest

from offload_run_test import NVME
from support import LLAMA, TerraceTest

RATE = 30_000_000  # bytes a second, each way
ERROR = 0.15
STEPS, WARM_UP = 6, 2
MODEL = {**LLAMA, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}


class OffloadTimeTest(TerraceTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()

    def step_seconds(self, schedule, clip):
        """(planned, measured, what all gradients take to the drive), of a job with all states there."""
        job = self.job({"model.config": MODEL, "train.steps": STEPS, "train.global_batch": 4, "train.clip_grad_norm": clip,
                        "layout": {"schedule": schedule, "micro_batch": 2, "recompute": "block", "offload": NVME},
                        "resources.host_memory": "1GiB", "resources.device_memory": "1GiB",
                        "resources.nvme": {"paths": [str(self.nvme)], "bytes_per_second": RATE}})
        plan = self.terrace("plan", job, "-o", "json").json()
        planned, gradients = plan["time"]["step_seconds"], 4 * int(plan["model"]["parameters"]) / RATE
        result = self.train(job, seconds=200)
        measured = statistics.median(event["step_seconds"] for event in result.events("step")[WARM_UP:])
        print(f"\n  {schedule}, clip_grad_norm {clip}: {measured:.3f} s a step, planned {planned:.3f} s ({measured / planned - 1:+.1%})")
        return planned, measured, gradients

    def test_a_step_takes_as_long_as_planned(self):
        for schedule in ("breadth_first", "1f1b"):
            measured = {}
            for clip in (0, 1):
                with self.subTest(schedule=schedule, clip=clip):
                    planned, measured[clip], gradients = self.step_seconds(schedule, clip)
                    self.assertLess(abs(measured[clip] / planned - 1), ERROR)
            self.assertLess(measured[0], measured[1] - 0.5 * gradients, "gradients neither go to the drive nor come back")


if __name__ == "__main__":
    unittest.main(verbosity=2)
