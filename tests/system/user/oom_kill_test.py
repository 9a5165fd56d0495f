#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernel's OOM killer ends a rank of a real job, and the job goes on with a smaller layout.

The worker runs in a memory control group of its own. A library that is preloaded into the ranks makes them hold more than their
plan allows, and then one of them takes at once more than the group has: too fast for anyone to ask it to end. The test is skipped
where control groups cannot be made.
"""
import re
import unittest

from memory_group import memory_group, oom_kills, used_bytes
from out_of_memory_test import ALLOWED, MIB, STEPS, GrowingTest
from support import losses_of

LEAK_MIB = 92  # more than a plan allows, together with what a rank takes anyway


class OomKillTest(GrowingTest):
    def grow_until_killed(self, group, limit):
        """The group gets twice what is used, so that no limit is near; then the rank takes all of that at once."""
        rank, = self.rank_pids()
        used = used_bytes(group)
        limit.write_text(str(2 * used))
        self.grow.with_name("grow.once").write_text(str(2 * used // MIB))
        self.wait_until(lambda: rank not in self.rank_pids(), "the rank was killed")
        self.assertGreaterEqual(oom_kills(group), 1, "by the kernel")

    def test_the_job_goes_down_the_ladder_from_its_last_checkpoint(self):
        group, limit = memory_group(self)
        self.start_coordinator()
        worker = self.start_growing_worker()
        (group / "cgroup.procs").write_text(str(worker.pid))
        self.grow.write_text(str(LEAK_MIB))  # from its start
        spec = self.deep_job({"checkpoint.every_steps": 1})
        job = self.submit(spec)
        self.wait_for_steps(job, 2)
        before = self.status(job)["plan"]["layout"]["micro_batch"]
        self.grow_until_killed(group, limit)
        status = self.wait_for_end(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["message"])

        self.assertEqual(len(status["adjustments"]), 1, status)
        adjustment = status["adjustments"][0]
        step, after = int(adjustment["step"]), adjustment["layout"]["micro_batch"]
        self.assertTrue(2 <= step < STEPS, adjustment)
        # A checkpoint may be whole that the rank had no time to report.
        log, = self.folder.glob("worker-0/runs/*/2/0/rank.log")
        resumed = int(re.search(r"resumes after step (\d+)", log.read_text()).group(1))
        self.assertTrue(step <= resumed <= step + 2, (step, resumed))
        self.assertLess(after, before)
        for words in ("signal 9 (SIGKILL) by the kernel's OOM killer", group.name, "outside the arenas", "what would have fit: "):
            self.assertIn(words, adjustment["cause"])
        self.assertGreater(int(status["learned_external_bytes"]), ALLOWED)
        shown = self.cli("status", job).out
        for words in ("adjusted", f"layout.micro_batch {after} instead of {before}", "OOM killer"):
            self.assertIn(words, shown)
        self.assertEqual(len(list(self.folder.glob("worker-0/runs/*/1/0/memory_verdict.txt"))), 1, "the page stays")

        losses = losses_of(self.cli("watch", job, "-o", "json").out)
        self.assertEqual(sorted(losses), list(range(1, STEPS + 1)), "no step is missing")
        self.assert_went_on(spec, resumed, adjustment["layout"], losses)
        worker.end()
        self.wait_until(lambda: not (group / "cgroup.procs").read_text(), "nothing is left in the group")


if __name__ == "__main__":
    unittest.main(verbosity=2)
