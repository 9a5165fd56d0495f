#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that give their devices back, to others and to the queue, and sweeps, as users meet them."""
import pathlib
import unittest

from service import ServiceTest
from support import CANCELLED, INVALID_INPUT, NOT_FOUND, OK, USAGE

ENDLESS = {"train.steps": 1_000_000}


class PreemptTest(ServiceTest):
    coordinator_options = ("--preempt-priority", "10", "--preempt-exempt", "0s")

    def test_a_job_of_a_higher_priority_takes_the_devices_and_the_other_goes_on_afterwards(self):
        self.start_service(1)
        path = self.job(ENDLESS)
        low = self.submit(path)
        self.wait_for_steps(low, 3)
        high = self.submit(self.job({"train.steps": 30, "priority": 10}))
        self.wait_for_state(high, "STARTING", "RUNNING", "SUCCEEDED")
        status = self.status(low)
        self.assertEqual(status["preemptions"], 1)
        step = int(status["progress"]["checkpoint_step"])
        self.assertGreaterEqual(step, 3, "a checkpoint was written first")
        self.cli("watch", high, code=OK)
        self.wait_for_steps(low, step + 1)
        self.assertRegex(self.cli("status", low).out, r"(?m)^preempted +1 time$")
        self.wait_for_samples((("terrace_job_preemptions_total", ()), 1))

        with self.subTest("a job that is requeued lets the next one start"):
            other = self.submit(self.job({"train.steps": 5}))
            self.assertEqual(self.status(other)["state"], "QUEUED")
            self.assertIn("stops after this step, with a checkpoint, and waits in the queue", self.cli("requeue", low).out)
            self.wait_for_state(other, "SUCCEEDED")
            self.wait_for_steps(low, step + 2)
            self.assertEqual(self.status(low)["restarts"], 0)
            self.cli("requeue", "nobody-9", code=NOT_FOUND)
        self.cli("cancel", "--force", low)
        self.assertIn("it has ended already", self.cli("requeue", low, code=INVALID_INPUT).err)

    def test_a_job_on_several_workers_gives_way_to_one_that_needs_several_and_goes_on_to_the_bit(self):
        self.start_service(3)
        two = {"resources.nodes": 2, "layout.dp": 2, "train.schedule": {"name": "constant"}, "checkpoint.keep": 0}
        alone, path = self.submit(self.job(ENDLESS)), self.job({**two, **ENDLESS})
        self.wait_for_steps(alone, 3)
        low = self.submit(path)
        self.wait_for_steps(low, 5)
        before = {rank["worker"] for rank in self.status(low)["placement"]["ranks"]}
        self.assertEqual(len(before), 2)

        high = self.submit(self.job({**two, "train.steps": 10, "priority": 10}))
        self.cli("watch", high, code=OK)
        self.assertEqual({rank["worker"] for rank in self.status(high)["placement"]["ranks"]}, before)
        self.assertEqual([self.status(job)["preemptions"] for job in (low, alone)], [1, 0], "one job of two workers, not two jobs")
        self.assertEqual(self.status(alone)["state"], "RUNNING")
        step = int(self.status(low)["progress"]["checkpoint_step"])
        self.wait_for_steps(low, step + 5)
        self.cli("cancel", low)
        watched = self.cli("watch", low, "-o", "json", code=CANCELLED)
        last = max(watched.losses)
        self.assertEqual([event["step"] for event in watched.events("step")], list(range(1, last + 1)), "each step once")
        self.assertEqual(self.status(low)["restarts"], 0)

        with self.subTest("a job that nobody stopped ends alike"):
            undisturbed = self.job({**two, "train.steps": last})
            self.assertEqual(self.cli("watch", self.submit(undisturbed), "-o", "json").losses, watched.losses)
            for name in ("model.safetensors", "optimizer.safetensors"):
                ended, wanted = (self.checkpoints(which)[-1] / name for which in (path, undisturbed))
                self.assertEqual(ended.read_bytes(), wanted.read_bytes(), name)
        with self.subTest("two jobs of one worker each stop for one of two"):
            jobs = [alone, *(self.submit(self.job(ENDLESS)) for _ in range(2))]
            for job in jobs:
                self.wait_for_steps(job, 3)
            self.cli("watch", self.submit(self.job({**two, "train.steps": 10, "priority": 10})), code=OK)
            self.assertEqual(sorted(self.status(job)["preemptions"] for job in jobs), [0, 1, 1])
            for job in jobs:
                self.wait_for_steps(job, int(self.status(job)["progress"]["checkpoint_step"]) + 1)
                self.assertEqual(self.status(job)["restarts"], 0)
        self.cli("cancel", "--force", *jobs)


class SweepTest(ServiceTest):
    def sweep(self, *options, code=OK):
        path = self.job({"train.steps": 6, "train.eval_every_steps": 3})
        return path, self.cli("submit", path, *options, code=code)

    def test_a_sweep_is_compared_in_one_table(self):
        self.start_service(1)
        path, submitted = self.sweep("--sweep", "train.optimizer.lr=1e-3,3e-3", "--sweep", "train.seed=1,2", "--max-running", "1",
                                     "-o", "json")
        jobs = submitted.json()["jobs"]
        self.assertEqual([job["array"]["values"][0]["value"] for job in jobs], ["1e-3", "1e-3", "3e-3", "3e-3"])
        self.assertEqual({job["array"]["array"] for job in jobs}, {jobs[0]["id"]})
        self.assertEqual([job["spec"]["train"]["optimizer"]["lr"] for job in jobs], [1e-3, 1e-3, 3e-3, 3e-3])
        self.assertEqual([pathlib.Path(job["spec"]["checkpoint"]["directory"]).name for job in jobs],
                         [f"train.optimizer.lr={rate},train.seed={seed}" for rate in ("1e-3", "3e-3") for seed in "12"])
        for job in jobs:
            self.wait_for_state(job["id"], "SUCCEEDED")
        table = self.cli("sweep", jobs[2]["id"]).out
        self.assertRegex(table, r"JOB +train\.optimizer\.lr +train\.seed +STATE +STEP +LOSS +VALIDATION +TOKENS/S")
        for job in jobs:
            self.assertRegex(table, rf"(?m)^{job['id']} +\de-3 +[12] +SUCCEEDED +6/6 +\d\.\d+ +\d\.\d+( \*)? ")
        best = min(self.cli("sweep", jobs[0]["id"], "-o", "json").json()["jobs"],
                   key=lambda job: job["progress"]["best_eval_loss"] or job["progress"]["eval_loss"])
        self.assertIn(f"* the lowest validation loss: {best['id']} (train.optimizer.lr=", table)
        self.assertRegex(self.cli("status", jobs[3]["id"]).out,
                         rf"(?m)^sweep +job 4 of 4 of {jobs[0]['id']}: train\.optimizer\.lr=3e-3, train\.seed=2$")

    def test_all_jobs_of_a_sweep_are_cancelled_at_once_and_what_is_wrong_is_no_half_a_sweep(self):
        self.start_service(1)
        for options, told in ((("--sweep", "train.seed=1,2", "--sweep", "train.optimizer.lr=1e-3,fast"),
                               "job 2 of 4 (train.seed=1, train.optimizer.lr=fast): "),
                              (("--sweep", "train.sed=1,2"), "try train.seed"),
                              (("--sweep", "checkpoint.directory=a,./a"), "as job 1 has; must be one of its own"),
                              (("--sweep", "train.seed"), "--sweep: got train.seed, must be a key of the spec and its values")):
            with self.subTest(options):
                self.assertIn(told, self.sweep(*options, code=INVALID_INPUT)[1].err)
        self.sweep("--max-running", "2", code=USAGE)
        self.assertEqual(self.cli("ls", "--all", "-o", "json").json()["jobs"], [], "no half a sweep")
        alone = self.submit(self.job(ENDLESS))
        self.assertIn("is of no sweep", self.cli("sweep", alone, code=INVALID_INPUT).err)
        self.assertIn("must be a job of an array", self.cli("cancel", "--array", alone, code=INVALID_INPUT).err)
        path, submitted = self.sweep("--sweep", "train.seed=1,2,3")
        self.assertRegex(submitted.out, r"JOB +STATE +VALUES\n")
        first = submitted.out.splitlines()[1].split()[0]
        self.assertIn(f"compare them with: terrace sweep {first}", submitted.out)
        self.assertEqual(self.cli("cancel", "--force", "--array", first).out.count("CANCELLED"), 3)
        self.assertIn(self.status(alone)["state"], ("RUNNING", "STARTING"))
        self.cli("cancel", "--force", alone)


if __name__ == "__main__":
    unittest.main()
