#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out where no plan could see it: the job goes on with a smaller layout, from its last step.

A library that is preloaded into the ranks makes them grow, as a leak in a library of theirs would; nothing in Terrace knows of it.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import unittest

from service import ServiceTest
from support import BIN, GPT, losses_of

MIB = 1 << 20
STEPS = 30
ALLOWED = 96 * MIB  # outside the arenas, by every plan
# Narrow and deep: most of its memory are activations, so that a smaller micro-batch frees much.
DEEP = {**GPT, "n_positions": 256, "n_layer": 12}
# Wide and shallow: most of its memory are states, which offload moves away.
MOSTLY_STATES = {"model.config": {**GPT, "n_positions": 256, "n_embd": 256, "n_head": 4, "n_layer": 4}, "data.sequence_length": 16,
                 "train.steps": 300}


class GrowingTest(ServiceTest):
    """What tests of ranks that grow share."""

    def start_growing_worker(self):
        self.grow = self.folder / "grow"
        self.environment.update(LD_PRELOAD=str(BIN.parent / "tests/libgrow_memory.so"), GROW_MEMORY=str(self.grow),
                                GROW_MEMORY_IN="terrace-rank")
        self.addCleanup(self.environment.pop, "LD_PRELOAD", None)
        worker = self.start_worker("worker-0")
        del self.environment["LD_PRELOAD"]
        return worker

    def grow_now(self, mib=92):
        """The rank grows and stands still until its daemon has seen it, so that a fast one does not end before."""
        rank = self.rank_pids()[0]
        before = self.resident(rank)
        self.grow.write_text(str(mib))
        self.wait_until(lambda: self.resident(rank) >= before + (mib - 2) * MIB, "the rank has grown")
        os.kill(rank, signal.SIGSTOP)
        try:
            self.wait_until(lambda: list(self.folder.glob("worker-0/runs/*/1/0/ran_out.pb")), "the daemon has seen it")
        finally:
            os.kill(rank, signal.SIGCONT)

    @staticmethod
    def resident(pid):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024

    def wait_for_end(self, job):
        def ended():
            status = self.status(job)
            return status if status["state"] in ("SUCCEEDED", "FAILED") else None
        return self.wait_until(ended, f"{job} has ended", seconds=180)

    def deep_job(self, changes=None):
        return self.job({"model.config": DEEP, "data.sequence_length": 256, "train.global_batch": 8, "train.eval_batches": 1,
                         "train.steps": STEPS, "checkpoint.keep": 0, **(changes or {})})

    def arena(self, job):
        plan = self.terrace("plan", job, "-o", "json").json()
        plan = plan.get("plan", plan)
        device = [line for line in plan["memory"] if line.get("tier", "DEVICE") in ("DEVICE", "TIER_UNSPECIFIED")]
        return int(device[0]["arena_bytes"])

    def assert_went_on(self, spec, step, layout, losses):
        """What was done after the change is what a job does that begins at that step with that layout."""
        again = self.deep_job({"layout.micro_batch": layout["micro_batch"], "layout.recompute": layout.get("recompute", "none")})
        shutil.copytree(spec.parent / "checkpoints" / f"step-{step:08d}", again.parent / "checkpoints" / f"step-{step:08d}")
        expected = losses_of(self.terrace("run", again, "-o", "json", seconds=180).out)
        self.assertEqual(sorted(expected), list(range(step + 1, STEPS + 1)))
        self.assertEqual({at: losses[at] for at in expected}, expected)


class OutOfMemoryTest(GrowingTest):
    def test_a_job_whose_rank_grows_goes_on_with_a_smaller_micro_batch(self):
        limit = self.arena(self.deep_job()) + ALLOWED + 4 * MIB
        self.start_coordinator()
        self.start_growing_worker()
        spec = self.deep_job({"resources.device_memory": limit})
        job = self.submit(spec)
        self.wait_for_steps(job, 2)
        before = self.status(job)["plan"]["layout"]["micro_batch"]
        self.grow_now()
        status = self.wait_for_end(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["message"])

        self.assertEqual(len(status["adjustments"]), 1, status)
        adjustment = status["adjustments"][0]
        step, after = int(adjustment["step"]), adjustment["layout"]["micro_batch"]
        self.assertTrue(2 <= step < STEPS, "it was ended at a step's boundary, not killed")
        self.assertLess(after, before)
        self.assertIn(f"layout.micro_batch {after} instead of {before}", adjustment["change"])
        self.assertIn("outside the arenas it holds", adjustment["cause"])
        self.assertGreater(int(status["learned_external_bytes"]), ALLOWED)
        self.assertIn("adjusted", self.cli("status", job).out)
        self.wait_for_samples((("terrace_job_adjustments_total", (("rung", "micro_batch"),)), 1))
        told = self.cli("watch", job, "-o", "json").out
        self.assertIn("memory ran out: goes on from the checkpoint", told)

        self.assert_went_on(spec, step, adjustment["layout"], losses_of(told))

        # The next job of this shape begins with what was learned.
        planned = self.cli("plan", self.deep_job({"resources.device_memory": limit, "train.seed": 5}), "-o", "json").json()
        self.assertIn(status["learned_external_bytes"], json.dumps(planned))

    def goes_down_to(self, rung, words, pinned, changes):
        """What is pinned leaves that rung as the first; none of its changes is one of results."""
        pinned = {"layout.micro_batch": 8, **pinned}
        roomy = self.deep_job({**pinned, **changes})
        expected = losses_of(self.terrace("run", roomy, "-o", "json", seconds=180).out)
        limit = self.arena(self.deep_job({**pinned, "layout.recompute": "none", **changes})) + ALLOWED + 4 * MIB
        self.start_coordinator()
        self.start_growing_worker()
        job = self.submit(self.deep_job({**pinned, **changes, "resources.device_memory": limit}))
        self.wait_for_steps(job, 2)
        before = self.status(job)["plan"]["layout"]
        self.assertEqual((before["micro_batch"], before.get("recompute", "none"), before.get("offload", {})), (8, "none", {}))
        self.grow_now()
        status = self.wait_for_end(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["message"])
        adjustment, = status["adjustments"]
        self.assertTrue(2 <= int(adjustment["step"]) < len(expected), "it was ended at a step's boundary, not killed")
        for word in words:
            self.assertIn(word, adjustment["change"])
        self.wait_for_samples((("terrace_job_adjustments_total", (("rung", rung),)), 1))
        self.assertEqual(losses_of(self.cli("watch", job, "-o", "json").out), expected)

    def test_the_rung_below_a_smaller_micro_batch_is_recompute(self):
        self.goes_down_to("recompute", ["layout.recompute ", "instead of none"], {}, {})

    def test_the_rung_below_recompute_is_the_host(self):
        self.goes_down_to("host", ["layout.offload.optimizer host"], {"layout.recompute": "none"},
                          {**MOSTLY_STATES, "resources.host_memory": "1GiB"})

    def test_the_last_rung_is_nvme(self):
        """The host has no room for the states."""
        self.goes_down_to("nvme", ["layout.offload.optimizer nvme"], {"layout.recompute": "none"},
                          {**MOSTLY_STATES, "resources.host_memory": "48MiB", "resources.nvme": {"paths": [str(self.folder)]}})

    def test_what_is_pinned_is_not_moved_and_named_instead(self):
        pinned = {"layout.micro_batch": 8, "layout.recompute": "none", "train.steps": 1_000_000}
        limit = self.arena(self.deep_job(pinned)) + ALLOWED + 4 * MIB
        self.start_coordinator()
        self.start_growing_worker()
        job = self.submit(self.deep_job({**pinned, "resources.device_memory": limit}))
        self.wait_for_steps(job, 2)
        self.grow_now()
        status = self.wait_for_end(job)
        self.assertEqual(status["reason"], "REASON_OUT_OF_MEMORY")
        self.assertIn("release it or set layout.micro_batch", status["message"])
        self.assertNotIn("adjustments", [key for key, value in status.items() if value])


if __name__ == "__main__":
    unittest.main(verbosity=2)
