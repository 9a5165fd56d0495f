#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layout.allocator: caching and expandable, as a user meets it: the same numbers and checkpoints, a plan that is kept, a refusal with a way out."""
import hashlib
import pathlib
import pickle
import unittest

from service import ServiceTest
from support import LLAMA, RESOURCES

CACHING = {"layout.allocator": "caching"}
ENDLESS = {"train.steps": 1_000_000}


def digests(folder):
    """Of everything that holds a tensor in the newest checkpoint."""
    newest = max(pathlib.Path(folder).glob("step-*"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(newest.glob("*.safetensors"))}


class CachingTest(ServiceTest):
    def test_losses_and_checkpoints_equal_those_of_planned_memory(self):
        runs = {}
        for mode in ("planned", "caching", "expandable"):
            job = self.job({"layout.allocator": mode, "checkpoint.directory": str(self.folder / mode), "train.steps": 6},
                           name=f"{mode}.yaml")
            runs[mode] = (self.train(job).losses, digests(self.folder / mode))
        self.assertGreater(len(runs["planned"][1]), 0)
        self.assertEqual(runs["caching"], runs["planned"])
        self.assertEqual(runs["expandable"], runs["planned"])

    def test_the_plan_is_what_a_rank_holds_and_what_is_shown(self):
        self.start_service(1)
        job = self.submit(self.job({**ENDLESS, **CACHING, "model.config": LLAMA}))
        self.wait_for_state(job, "RUNNING")
        memory = self.status(job)["plan"]["memory"][0]
        needed = int(memory["arena_bytes"])
        self.assertGreater(needed, int(memory["lower_bound_bytes"]))

        def reported():
            ranks = self.cli("memory", job, "-o", "json").json()["ranks"]
            return ranks[0] if ranks and int(ranks[0]["allocator"]["allocated_bytes"]) > 0 else None
        rank = self.wait_until(reported, "the rank reports a step")
        device, stats = rank["tiers"][0], rank["allocator"]
        self.assertEqual((int(device["reserved_bytes"]), int(device["predicted_bytes"])), (needed, needed))
        self.assertEqual((stats["mode"], int(stats["reserved_bytes"])), ("caching", needed))
        held = [int(stats[name]) for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")]
        self.assertEqual(held, sorted(held))
        self.assertRegex(self.cli("memory", job).out, r"caching")
        snapshot = self.folder / "memory.pickle"
        self.cli("memory", job, "--snapshot", snapshot)
        segments = pickle.loads(snapshot.read_bytes())["segments"]
        self.assertEqual(sum(segment["total_size"] for segment in segments), needed)
        self.assertGreater(len(segments), 1)
        for segment in segments:
            self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
        self.cli("cancel", "--force", job)

    def test_a_device_that_only_planned_memory_fits_is_named(self):
        planned = self.terrace("plan", self.job(), "-o", "json").json()
        memory = planned["memory"][0]
        just_enough = int(memory["arena_bytes"]) + int(memory["external_bytes"])
        result = self.terrace("plan", self.job({**CACHING, "resources.device_memory": just_enough}), code=RESOURCES)
        self.refused(result, "needs", "layout.allocator planned")


if __name__ == "__main__":
    unittest.main()
