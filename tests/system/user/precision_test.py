#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products of single layers and modules in a precision of their own (`train.precision: {default, layers}`): a job trains, generates and
goes on; a plan names them; what cannot be is refused in a sentence."""
import json
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest

CONSTANT = {"train.schedule": {"name": "constant"}}
MODEL = {"model.config": {**LLAMA, "num_hidden_layers": 4}}
MIXED = {"default": "bf16", "layers": {"first 1": "fp8", "last 2.mlp": "fp32", "lm_head": "fp32"}}


class PrecisionTest(TerraceTest):
    def losses(self, precision, steps=3, **changes):
        result = self.train(self.job({**MODEL, **CONSTANT, "train.steps": steps, "train.precision": precision, **changes}))
        return result, [result.losses[step] for step in range(1, steps + 1)]

    def test_a_mixture_is_a_job_of_its_own_and_the_same_on_two_ranks_as_often_as_it_runs(self):
        bf16 = self.losses("bf16")[1]
        mixed = self.losses(MIXED)[1]
        self.assertNotEqual(mixed, bf16)
        self.assertEqual(self.losses({"default": "fp8", "layers": {"0-3": "bf16"}})[1], bf16, "every layer is in bf16")
        shared = {"layout": {"zero": 1}, "resources.devices_per_node": 2}
        two = self.losses(MIXED, **shared)[1]
        self.assertEqual(self.losses(MIXED, **shared)[1], two)
        for one, other in zip(two, mixed):
            self.assertAlmostEqual(float(one), float(other), delta=0.01)

    def test_a_checkpoint_generates_and_goes_on_and_tells_of_a_change(self):
        directory = str(self.folder / "kept")
        result, _ = self.losses(MIXED, 2, **{"checkpoint.directory": directory})
        self.assertTrue(self.terrace("generate", result.done["checkpoint"], "--prompt", "the", "--tokens", 4).out)
        more = self.train(self.job({**MODEL, **CONSTANT, "train.steps": 3, "train.precision": "bf16", "checkpoint.directory": directory}))
        self.assertIn("train.precision.layers from [first 1: fp8, last 2.mlp: fp32, lm_head: fp32] to []", more.out + more.err)

    def test_a_plan_names_them(self):
        job = self.job({**MODEL, "train.precision": MIXED})
        layout = json.loads(self.terrace("plan", job, "-o", "json").out)["layout"]
        self.assertEqual(layout["head_precision"], "fp32")
        self.assertEqual([(one["attention"], one["mlp"]) for one in layout["layer_precisions"]],
                         [("fp8", "fp8"), ("bf16", "bf16"), ("bf16", "fp32"), ("bf16", "fp32")])
        text = " ".join(self.terrace("plan", job).out.split())
        self.assertIn("bf16 (attention by layer: 1 fp8, 3 bf16; mlp by layer: 1 fp8, 1 bf16, 2 fp32; lm_head fp32)", text)

    def test_what_cannot_be_is_refused(self):
        for precision, words in (
                ({"layers": {"4": "fp32"}}, ("train.precision.layers: got '4'", "the model's 4 layers, 0 to 3", "'last 1'")),
                ({"layers": {"0-1": "fp32", "1-2": "fp8"}}, ("'0-1' fp32 and '1-2' fp8", "give layer 1 one precision")),
                ({"default": "fp16", "layers": {"0": "bf16"}}, ("train.precision.layers.0: got bf16", "one of fp16, fp32, tf32")),
                ({"layers": {"decoder": "fp32"}}, ("train.precision.layers.decoder", "an unknown place", "first 2"))):
            with self.subTest(words[0]):
                self.refused(self.terrace("plan", self.job({**MODEL, "train.precision": precision}), code=INVALID_INPUT), *words)


if __name__ == "__main__":
    unittest.main()
