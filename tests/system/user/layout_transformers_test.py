#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers computes the same with a model that was trained in parts. Needs torch and transformers, as
transformers_test does."""
import unittest

import transformers_test
from support import GPT, LLAMA, QWEN3

LAYOUTS = {"tp 2 + sequence, pp 2": (4, {"tp": 2, "pp": 2, "sequence_parallel": True, "micro_batch": 2}),
           "tp 4, zero 3": (8, {"tp": 4, "dp": 2, "zero": 3, "micro_batch": 2}),
           "pp 2 interleaved, cp 2": (4, {"pp": 2, "cp": 2, "schedule": "interleaved", "micro_batch": 2})}


class LayoutTransformersTest(transformers_test.TransformersTest):
    # The tests of one rank are transformers_test's own.
    test_exported_model_has_the_same_loss = None
    test_both_continue_a_text_alike = None
    test_training_starts_from_weights_of_transformers = None

    def test_exported_model_of_every_layout_has_the_same_loss(self):
        for config in ({**GPT, "n_layer": 4}, {**LLAMA, "num_hidden_layers": 4}, {**QWEN3, "num_hidden_layers": 4}):
            for name, (ranks, layout) in LAYOUTS.items():
                with self.subTest(family=config["model_type"], layout=name):
                    loss, checkpoint = self.eval_loss({"model.config": config, "resources.devices_per_node": ranks, "layout": layout})
                    theirs = self.loss_of(self.load(checkpoint, "f32"))
                    print(f"\n  {config['model_type']} {name}: Terrace {loss:.8g}, transformers {theirs:.8g}")
                    self.assertLess(abs(loss - theirs), 1e-5 * abs(theirs))


if __name__ == "__main__":
    unittest.main(verbosity=2)
