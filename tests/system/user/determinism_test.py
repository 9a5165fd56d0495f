#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two runs of one job are bitwise equal, however often one of them was interrupted: every printed loss and every byte of
weights and optimizer state."""
import hashlib
import os
import signal
import unittest

from support import INTERRUPTED, OK, TerraceTest

STEPS = 300
# Steps are told every half second: on a fast machine too the run must outlast a few of those to be interrupted.
LONG = {"train.steps": STEPS, "train.global_batch": 48, "train.eval_every_steps": 100, "checkpoint.every_steps": 100,
        "checkpoint.keep": 0}


def state_of(checkpoint):
    return {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
            for name in ("model.safetensors", "optimizer.safetensors")}


class DeterminismTest(TerraceTest):
    def assert_same_end(self, job, losses, other):
        expected = self.train(other)
        self.assertEqual(sorted(expected.losses), list(range(1, STEPS + 1)))
        self.assertEqual(losses, {step: expected.losses[step] for step in losses})
        self.assertEqual(self.checkpoints(job)[-1].name, f"step-{STEPS:08}")
        self.assertEqual(state_of(self.checkpoints(job)[-1]), state_of(self.checkpoints(other)[-1]))

    def test_two_runs_are_bitwise_equal(self):
        for changes in ({}, {"train.precision": "bf16"}, {"resources.devices_per_node": 2}, {"resources.threads_per_device": 2}):
            with self.subTest(**changes):
                first, second = (self.job({"train.steps": 40, **changes}) for _ in range(2))
                self.assertEqual(self.train(first).losses, self.train(second).losses)
                self.assertEqual(state_of(self.checkpoints(first)[-1]), state_of(self.checkpoints(second)[-1]))

    def test_another_seed_is_another_run(self):
        first, second = self.job({"train.steps": 3}), self.job({"train.steps": 3, "train.seed": 99})
        self.assertNotEqual(self.train(first).losses, self.train(second).losses)

    def test_interrupted_run_resumes_bitwise(self):
        job = self.job(LONG)
        running = self.start("run", job, "-o", "json")
        running.wait_for_step(120)
        running.signal(signal.SIGINT)
        first = running.wait()
        self.assertEqual(first.code, INTERRUPTED, str(first))
        self.assertEqual(self.wait_until_nothing_runs(5), {})
        self.assertEqual(first.done["state"], "CANCELLED")
        stopped = max(first.losses)
        self.assertLess(stopped, STEPS, "it stopped in the middle")
        self.assertEqual(first.done["checkpoint"], str(self.checkpoints(job)[-1]))
        self.assertEqual(self.checkpoints(job)[-1].name, f"step-{stopped:08}")
        self.terrace("ckpt", "verify", first.done["checkpoint"])

        second = self.train(job)
        self.assertEqual(min(second.losses), stopped + 1)
        self.assert_same_end(job, {**first.losses, **second.losses}, self.job(LONG))

    def test_killed_run_leaves_nothing_and_resumes_bitwise(self):
        job = self.job(LONG)
        running = self.start("run", job, "-o", "json")
        running.wait_for_step(130)
        running.signal(signal.SIGKILL)
        first = running.wait()
        self.assertEqual(self.wait_until_nothing_runs(5), {}, "the local cluster outlived its command")
        for checkpoint in self.checkpoints(job):
            self.terrace("ckpt", "verify", checkpoint)
        saved = int(self.checkpoints(job)[-1].name[5:])
        self.assertGreaterEqual(saved, 100)

        second = self.train(job)
        self.assertEqual(min(second.losses), saved + 1)
        for step in first.losses.keys() & second.losses.keys():
            self.assertEqual(first.losses[step], second.losses[step], f"step {step} was done twice")
        self.assert_same_end(job, {**first.losses, **second.losses}, self.job(LONG))

    def test_killed_rank_recovers_by_itself_bitwise(self):
        for devices in (1, 2):
            with self.subTest(devices=devices):
                changes = {**LONG, "resources.devices_per_node": devices}
                job = self.job(changes)
                running = self.start("run", job, "-o", "json")
                running.wait_for_step(130)
                os.kill(self.rank_pids()[-1], signal.SIGKILL)
                result = running.wait()
                self.assertEqual(result.code, OK, str(result))
                states = [event["state"] for event in result.events("state")]
                self.assertIn("RECOVERING", states)
                recovering = next(event for event in result.events("state") if event["state"] == "RECOVERING")
                self.assertEqual(recovering["reason"], "RANK_DIED")
                self.refused(result, "signal 9")
                self.assertRegex(recovering["message"], r"checkpoint of step [12]00\b")
                self.assert_same_end(job, result.losses, self.job(changes))


if __name__ == "__main__":
    unittest.main(verbosity=2)
