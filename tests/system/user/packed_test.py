#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packed rows: documents of many lengths share rows with little padding, are trained as if each stood alone, on several layouts
alike, and a job goes on to the bit. What the mode cannot do is refused with the way out."""
import json
import random
import unittest

from frozen_test import CONSTANT
from support import LLAMA, TerraceTest


class PackedTest(TerraceTest):
    def lines(self, count=400):
        generator = random.Random(7)
        rows = []
        for _ in range(count):
            length = min(60, max(2, int(generator.lognormvariate(2.4, 0.8))))
            letter = generator.choice("abcdefgh")
            rows.append({"text": "".join(chr(ord(letter) + i % 3) for i in range(length))})
        return self.write("documents.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def packed(self, name, changes=None):
        return self.job({**CONSTANT, "model.config": LLAMA, "data.train": str(self.lines()), "data.samples": "packed",
                         "data.sequence_length": 64, "data.validation_fraction": 0.1, "train.steps": 12, "train.global_batch": 4,
                         "train.optimizer.lr": 1e-2, "train.seed": 3,
                         "checkpoint.directory": str(self.folder / name), **(changes or {})})

    def losses(self, name, changes=None, *arguments):
        losses = self.train(self.packed(name, changes), *arguments).losses
        return [float(losses[step]) for step in sorted(losses)]

    def test_little_is_padding(self):
        shown = self.terrace("data", self.packed("data"), "--steps", 6, "--rows", 1, "-o", "json").json()
        self.assertGreater(int(shown["tokens"]) / int(shown["positions"]), 0.9)
        self.assertGreater(len(shown["rows"][0]["spans"]), 4)  # several documents: of each the first token is predicted by none
        alone = self.terrace("data", self.packed("alone", {"data.samples": "documents"}), "--steps", 6, "-o", "json").json()
        self.assertLess(int(alone["tokens"]) / int(alone["positions"]), 0.4)

    def test_a_plan_says_that_attention_is_an_upper_bound(self):
        text = " ".join(self.terrace("plan", self.packed("plan")).out.split())
        self.assertIn("the time and the FLOPs of attention are upper bounds, those of rows of one document of 64 tokens", text)
        alone = self.terrace("plan", self.packed("alone", {"data.samples": "documents"})).out
        self.assertNotIn("upper bounds", alone)

    def test_every_layout_trains_alike(self):
        one = self.losses("one")
        self.assertLess(one[-1], one[0] - 1)
        for name, layout in (("zero3", {"layout.zero": 3, "layout.dp": 2}), ("tensor", {"layout.tp": 2}),
                             ("pipeline", {"layout.pp": 2, "layout.micro_batch": 1}), ("ring", {"layout.cp": 2})):
            with self.subTest(name):
                for a, b in zip(self.losses(name, {"resources.devices_per_node": 2, **layout}), one, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-5 * b)

    def test_a_job_goes_on_to_the_bit(self):
        two_epochs = {"train.steps": 40}
        whole = self.losses("whole", two_epochs)
        half = self.losses("parts", {"train.steps": 31})
        rest = self.losses("parts", two_epochs)
        self.assertEqual(half + rest, whole)

    def test_what_it_cannot_do_is_refused(self):
        ulysses = self.packed("u", {"resources.devices_per_node": 2, "layout.cp": 2, "layout.context_type": "ulysses"})
        self.refused(self.terrace("plan", ulysses, code=None), "layout.context_type: got ulysses, must be ring with data.samples: packed")
        buckets = self.packed("b", {"data.buckets": [32, 64]})
        self.refused(self.terrace("plan", buckets, code=None), "data.buckets")
        few = self.write("few.jsonl", '{"text": "abc"}\n' * 8)
        result = self.terrace("run", self.packed("few", {"data.train": str(few), "data.validation_fraction": 0.2}), code=None)
        self.assertIn("rows of packed samples", result.err + result.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
