#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rank of every layout maps the bytes that the plan names for its stage, and little else."""
import unittest

from memory_test import OUTSIDE_LIMIT, memory_of, pages
from support import GPT, LLAMA, TerraceTest

DEEP = {**LLAMA, "num_hidden_layers": 4}
CASES = {
    "tp 2, pp 2": {"layout": {"tp": 2, "pp": 2, "micro_batch": 2}},
    "dp 2, pp 2, zero 3": {"layout": {"dp": 2, "pp": 2, "zero": 3, "micro_batch": 1}},
    "dp 2, pp 2 interleaved, zero 2": {"layout": {"dp": 2, "pp": 2, "zero": 2, "schedule": "interleaved", "micro_batch": 1}},
    "dp 4, zero 1 over 2": {"layout": {"dp": 4, "zero": 1, "shard_size": 2, "micro_batch": 1}},
    "cp 2, tp 2 + sequence, bf16": {"layout": {"cp": 2, "tp": 2, "sequence_parallel": True, "recompute": "selective",
                                               "micro_batch": 2}, "train.precision": "bf16"},
    "tied gpt, uneven stages, zb-h1": {"model.config": {**GPT, "n_layer": 4},
                                       "layout": {"pp": 2, "tp": 2, "schedule": "zb-h1", "stage_layers": [1, 3],
                                                  "micro_batch": 2}},
}


class LayoutMemoryTest(TerraceTest):
    def test_every_rank_maps_what_the_plan_says_of_its_stage(self):
        for name, changes in CASES.items():
            with self.subTest(name):
                self.check(name, {"model.config": DEEP, "train.steps": 100_000, "resources.devices_per_node": 4, **changes})

    def check(self, name, changes):
        running = self.start("run", self.job(changes), "-o", "json")
        plan = running.wait_for(lambda event: event["event"] == "plan")["plan"]
        running.wait_for_step(3)
        ranks = self.pids_by_rank()
        self.assertEqual(sorted(ranks), list(range(plan["layout"]["ranks"])))
        stages = plan["memory"]
        self.assertEqual([int(memory["stage"]) for memory in stages], list(range(plan["layout"]["pipeline_parallel"])))
        for rank, pid in sorted(ranks.items()):
            mapped, resident, outside = memory_of(pid)
            planned = int(stages[rank * len(stages) // len(ranks)]["arena_bytes"])
            self.assertEqual(mapped, pages(planned), f"rank {rank}")
            self.assertEqual(resident, mapped, f"rank {rank}: all of it was touched before the first step")
            self.assertLess(outside, OUTSIDE_LIMIT, f"rank {rank}")
            print(f"  {name}: rank {rank} {mapped} bytes as planned, outside of them {outside / 1e6:.1f} MB")
        if len(stages) > 1:
            self.assertNotEqual(len({memory["arena_bytes"] for memory in stages}), 1, "stages differ, or ranks prove nothing")
        running.end()


if __name__ == "__main__":
    unittest.main(verbosity=2)
