#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data parallelism changes the order of sums and nothing else: the same global batch gives the same losses to rounding."""
import unittest

from support import GPT, LLAMA, TerraceTest

TOLERANCE = 1e-5  # relative, fp32


class DataParallelTest(TerraceTest):
    def losses(self, **changes):
        result = self.train(self.job({"train.steps": 25, "train.eval_every_steps": 5, **changes}))
        ranks = result.events("plan")[0]["plan"]["layout"]["ranks"]
        steps = [event["loss"] for event in result.events("step")]
        evaluations = [event["loss"] for event in result.events("eval")]
        return ranks, steps, evaluations

    def assert_close(self, one, other):
        self.assertEqual(len(one), len(other))
        for step, (a, b) in enumerate(zip(one, other), 1):
            self.assertLessEqual(abs(a - b), TOLERANCE * abs(a), f"value {step}: {a} and {b}")

    def test_one_two_and_four_ranks_give_the_same_losses(self):
        for config in (GPT, LLAMA):
            ranks, alone, evaluated = self.losses(**{"model.config": config})
            self.assertEqual(ranks, 1)
            for devices in (2, 4):
                with self.subTest(family=config["model_type"], devices=devices):
                    ranks, steps, evaluations = self.losses(
                        **{"model.config": config, "resources.devices_per_node": devices})
                    self.assertEqual(ranks, devices)
                    self.assert_close(alone, steps)
                    self.assert_close(evaluated, evaluations)

    def test_two_workers_with_two_ranks_each(self):
        _, alone, evaluated = self.losses()
        ranks, steps, evaluations = self.losses(**{"resources.nodes": 2, "resources.devices_per_node": 2})
        self.assertEqual(ranks, 4)
        self.assert_close(alone, steps)
        self.assert_close(evaluated, evaluations)

    def test_accumulation_changes_nothing_but_rounding(self):
        _, whole, _ = self.losses(**{"layout.micro_batch": 8})
        for micro_batch in (1, 4):
            with self.subTest(micro_batch=micro_batch):
                _, parts, _ = self.losses(**{"layout.micro_batch": micro_batch})
                self.assert_close(whole, parts)


if __name__ == "__main__":
    unittest.main(verbosity=2)
