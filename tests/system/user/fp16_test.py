#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fp16 as a user sees it: the loss scale falls until gradients are finite and is told in events, status and checkpoints; a stop
changes no digit, whatever state the scale is in; a scale that cannot fall ends the job with a sentence."""
import hashlib
import json
import math
import signal
import unittest

from support import FAILURE, TerraceTest

FP16 = {"train.precision": "fp16", "train.steps": 40}


def scale(**keys):
    return {f"train.loss_scale.{key}": value for key, value in keys.items()}


def state_of(checkpoint):
    return {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
            for name in ("model.safetensors", "optimizer.safetensors")}


def kept_scale(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())["loss_scale"]


class Fp16Test(TerraceTest):
    def test_it_learns_as_fp32_does(self):
        half = self.train(self.job(FP16))
        single = self.train(self.job({**FP16, "train.precision": "fp32"}))
        for step, loss in single.losses.items():
            self.assertLess(abs(float(half.losses[step]) / float(loss) - 1), 5e-3, step)
        steps = half.events("step")
        self.assertEqual({event["loss_scale"] for event in steps}, {65536})
        self.assertEqual({event["skipped"] for event in steps}, {False})
        self.assertNotIn("loss_scale", single.events("step")[0])

    def test_overflows_halve_the_scale_on_any_layout_and_good_steps_double_it(self):
        for layout in ({}, {"resources.devices_per_node": 2},
                       {"resources.devices_per_node": 2, "layout.tp": 2}, {"resources.devices_per_node": 2, "layout.pp": 2},
                       {"resources.devices_per_node": 2, "layout.zero": 3}):
            with self.subTest(**layout):
                job = self.job({**FP16, **scale(initial=2.0**28, window=5, hysteresis=3), **layout})
                result = self.train(job)
                steps = result.events("step")
                skipped = [event["skipped"] for event in steps]
                first_good = skipped.index(False)
                self.assertGreater(first_good, 3)
                # Nine digits are printed, which 2^28 has. Two overflows are forgiven, each further one halves the scale.
                for i in range(first_good + 1):
                    self.assertEqual(steps[i]["loss_scale"], 2.0 ** (28 - max(0, i - 2)), i)
                # Nothing is learned, and the schedule waits.
                self.assertEqual(len({event["learning_rate"] for event in steps[:first_good + 1]}), 1)
                self.assertTrue(any(b["loss_scale"] == 2 * a["loss_scale"] for a, b in zip(steps, steps[1:])))
                self.assertEqual(steps[-1]["skipped_steps"], sum(skipped))
                self.assertEqual(kept_scale(self.checkpoints(job)[-1])["skipped"], sum(skipped))
                self.assertTrue(all(math.isfinite(event["loss"]) for event in steps))

    def test_a_stop_amid_falling_and_growing_scales_changes_no_digit(self):
        changes = {**FP16, "train.steps": 300, **scale(initial=2.0**34, window=3), "train.global_batch": 48}
        job, other = self.job(changes), self.job(changes)
        running = self.start("run", job, "-o", "json")
        running.wait_for_step(12)
        running.signal(signal.SIGINT)
        first = running.wait()
        self.assertLess(max(first.losses), 300)
        rest, whole = self.train(job), self.train(other)
        self.assertEqual({**first.losses, **rest.losses}, {**first.losses, **{s: whole.losses[s] for s in rest.losses}})
        self.assertEqual({step: whole.losses[step] for step in first.losses}, first.losses)
        self.assertEqual(state_of(self.checkpoints(job)[-1]), state_of(self.checkpoints(other)[-1]))
        self.assertEqual(kept_scale(self.checkpoints(job)[-1]), kept_scale(self.checkpoints(other)[-1]))

    def test_the_scale_moves_to_another_layout(self):
        changes = {**FP16, **scale(initial=2.0**36)}
        before = self.train(self.job({**changes, "train.steps": 20}, name="moves")).events("step")
        after = self.train(self.job({**changes, "resources.devices_per_node": 2}, name="moves")).events("step")
        self.assertEqual(after[0]["step"], 21)
        self.assertEqual(after[0]["loss_scale"], before[-1]["loss_scale"])
        self.assertEqual(after[0]["skipped_steps"], before[-1]["skipped_steps"])

    def test_a_scale_that_cannot_fall_ends_the_job_and_says_what_to_do(self):
        dynamic = self.train(self.job({**FP16, **scale(initial=2.0**36, min=2.0**35)}), code=FAILURE)
        self.assertEqual((dynamic.done["state"], dynamic.done["reason"]), ("FAILED", "NON_FINITE_LOSS"))
        self.refused(dynamic, "smallest loss scale", "train.loss_scale.min", "bf16")
        fixed = self.train(self.job({**FP16, **scale(fixed=2.0**36)}), code=FAILURE)
        self.refused(fixed, "10 steps in a row", "train.loss_scale.fixed")

    def test_a_loss_that_does_not_come_back_is_no_success(self):
        # A first step so large that in all later ones the loss itself is not finite: no scale of the gradient mends that.
        diverges = {**FP16, "train.optimizer.lr": 10, "train.schedule.warmup_steps": 0}
        short = self.train(self.job({**diverges, "train.steps": 6}), code=FAILURE)
        self.assertTrue(math.isfinite(short.events("step")[0]["loss"]))
        self.assertEqual((short.done["state"], short.done["reason"]), ("FAILED", "NON_FINITE_LOSS"))
        self.refused(short, "the loss was not finite in the last 5 of 6 steps", "lower train.optimizer.lr", "use bf16")
        long = self.train(self.job(diverges), code=FAILURE)
        self.assertEqual(max(long.losses), 10)  # the tenth without a loss ends it
        self.refused(long, "10 steps in a row", "use bf16")

    def test_a_job_that_its_scale_kept_from_learning_says_so(self):
        result = self.train(self.job({**FP16, "train.steps": 3, **scale(initial=2.0**36)}))
        warnings = [event["text"] for event in result.events("warning")]
        self.assertTrue(any("the gradient was not finite in the last 3 of 3 steps" in text and "train.loss_scale.initial" in text
                            for text in warnings), warnings)

    def test_a_minimum_above_the_start_is_refused(self):
        self.refused(self.terrace("plan", self.job({**FP16, **scale(initial=2, min=4)}), code=4),
                     "train.loss_scale.min", "at most train.loss_scale.initial 2")


if __name__ == "__main__":
    unittest.main()
