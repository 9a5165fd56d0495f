#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose number of workers may change, `resources.nodes: MIN:MAX`, as users meet them."""
import signal
import unittest

from service import ServiceTest
from support import CANCELLED, OK


class ElasticTest(ServiceTest):
    coordinator_options = ("--grow-after", "3s")

    def on(self, job):
        return sorted(rank["worker"] for rank in self.status(job)["placement"]["ranks"])

    def runs_on(self, job, *workers):
        self.wait_until(lambda: self.on(job) == sorted(workers), f"{job} is placed on {workers}", seconds=60)
        self.wait_for_state(job, "RUNNING")

    def test_a_job_goes_on_with_the_workers_that_there_are(self):
        _, workers = self.start_service(2)
        # Of so many sequences that a step is planned to be faster on two, and at a rate at which roundings do not grow.
        settings = {"resources.nodes": "1:2", "train.global_batch": 64, "train.optimizer.lr": 1e-4, "checkpoint.every_steps": 5, "checkpoint.keep": 0, "train.schedule": {"name": "constant"}}
        path = self.job({**settings, "train.steps": 1_000_000})
        job = self.submit(path)
        self.wait_for_steps(job, 12)
        self.assertEqual(self.on(job), ["worker-0", "worker-1"])

        with self.subTest("one is lost"):
            workers[1].signal(signal.SIGKILL)
            self.runs_on(job, "worker-0")
            lost, = self.status(job)["adjustments"]
            self.assertEqual((lost["change"], lost["cause"]), ("1 worker with 1 rank instead of 2 with 2", "resources.nodes: 1:2"))
            self.wait_for_steps(job, int(lost["step"]) + 20)
            self.assertIn("adjusted     from step", self.cli("status", job).out)
            self.assertEqual(self.status(job)["restarts"], 1)
        with self.subTest("it is back"):
            self.start_worker("worker-1")
            self.runs_on(job, "worker-0", "worker-1")
            grown = self.status(job)["adjustments"][-1]
            self.assertEqual(grown["change"], "2 workers with 2 ranks instead of 1 with 1")
            self.wait_for_steps(job, int(grown["step"]) + 20)
            self.assertEqual(self.status(job)["restarts"], 1, "that is none")
        self.cli("cancel", job)
        watched = self.cli("watch", job, "-o", "json", code=CANCELLED)
        steps = int(grown["step"]) + 20
        with self.subTest("the losses are those of a job that had both all the time"):
            undisturbed = self.cli("watch", self.submit(self.job({**settings, "train.steps": steps})), "-o", "json", code=OK)
            for step in range(1, steps + 1):
                wanted = float(undisturbed.losses[step])  # hundreds of steps make a rounding larger
                self.assertAlmostEqual(float(watched.losses[step]), wanted, delta=0.01 * wanted, msg=f"step {step}")

    def test_a_job_that_is_next_starts_on_the_workers_that_are_free(self):
        self.start_service(2)
        alone = self.submit(self.job({"train.steps": 1_000_000_000}))
        self.wait_for_steps(alone, 3)
        job = self.submit(self.job({"resources.nodes": "1:2", "train.steps": 10}))
        self.cli("watch", job, code=OK)
        self.assertEqual(len(self.on(job)), 1)
        self.cli("cancel", "--force", alone)


if __name__ == "__main__":
    unittest.main(verbosity=2)
