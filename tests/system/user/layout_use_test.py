#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people do with a model that was trained in parts: its evaluation, its text, its checkpoint are those of one rank."""
import unittest

from support import GPT, LLAMA, TerraceTest

LAYOUTS = {"tp 2 + sequence, pp 2": (4, {"tp": 2, "pp": 2, "sequence_parallel": True, "micro_batch": 2}),
           "cp 2, dp 2, zero 3": (4, {"cp": 2, "dp": 2, "zero": 3, "micro_batch": 2})}


class LayoutUseTest(TerraceTest):
    def trained(self, config, ranks, layout):
        return self.train(self.job({"model.config": config, "train.steps": 10, "train.eval_every_steps": 5, "train.eval_batches": 2,
                                    "resources.devices_per_node": ranks, "layout": layout}), seconds=180)

    def text_of(self, result):
        checkpoint = result.done["checkpoint"]
        self.terrace("ckpt", "verify", checkpoint)
        made = self.terrace("generate", checkpoint, "--prompt", "the king ", "--tokens", 24, "--temperature", 0).out
        self.assertTrue(made.startswith("the king "))
        return made

    def test_evaluation_and_text_are_those_of_one_rank(self):
        cases = (({**GPT, "n_layer": 4}, "tp 2 + sequence, pp 2"), ({**LLAMA, "num_hidden_layers": 4}, "cp 2, dp 2, zero 3"))
        for config, name in cases:
            with self.subTest(family=config["model_type"], layout=name):
                alone, result = self.trained(config, 1, {"micro_batch": 2}), self.trained(config, *LAYOUTS[name])
                evaluated = [(event["step"], event["tokens"]) for event in result.events("eval")]
                self.assertEqual(evaluated, [(event["step"], event["tokens"]) for event in alone.events("eval")])
                for ours, expected in zip(result.events("eval"), alone.events("eval")):
                    self.assertLess(abs(ours["loss"] - expected["loss"]), 2e-5 * expected["loss"])
                self.assertEqual(self.text_of(result), self.text_of(alone))

    def test_exported_weights_start_another_job(self):
        """With a learning rate of 0 the first loss is that of the weights: those that were trained in parts."""
        ranks, layout = LAYOUTS["tp 2 + sequence, pp 2"]
        trained = self.trained({**GPT, "n_layer": 4}, ranks, layout)
        folder = self.folder / "exported"
        self.terrace("ckpt", "export", trained.done["checkpoint"], "--output", folder)
        again = self.train(self.job({"model.config": str(folder / "config.json"), "model.init": str(folder), "train.steps": 1,
                                     "train.eval_batches": 2,
                                     "train.optimizer": {"lr": 0}, "resources.devices_per_node": 2, "layout": {"tp": 2}}))
        expected = trained.events("eval")[-1]["loss"]
        self.assertLess(abs(again.events("eval")[-1]["loss"] - expected), 1e-5 * expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
