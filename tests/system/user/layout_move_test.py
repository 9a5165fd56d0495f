#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of any layout goes on in any other, other numbers of ranks included, as if nothing had happened."""
import unittest

from support import GPT, LLAMA, TerraceTest

STEPS = 12
TOLERANCE = 2e-5  # relative, fp32: twelve steps of sums in other orders

LAYOUTS = {
    "one rank": (1, {}),
    "dp 2": (2, {"dp": 2}),
    "dp 2, zero 3": (2, {"dp": 2, "zero": 3}),
    "tp 2": (2, {"tp": 2}),
    "tp 4": (4, {"tp": 4}),
    "tp 2 + sequence, pp 2": (4, {"tp": 2, "pp": 2, "sequence_parallel": True}),
    "pp 2 interleaved": (2, {"pp": 2, "schedule": "interleaved"}),
    "pp 4": (4, {"pp": 4}),
    "dp 4, zero 1 over 2": (4, {"dp": 4, "zero": 1, "shard_size": 2}),
    "cp 2, zero 2": (2, {"cp": 2, "zero": 2}),
    "pp 2 zbv, dp 2, zero 2": (4, {"pp": 2, "dp": 2, "zero": 2, "schedule": "zbv"}),
}
PAIRS = (("one rank", "tp 2 + sequence, pp 2"), ("dp 2, zero 3", "tp 2"), ("pp 2 interleaved", "dp 2"), ("tp 4", "one rank"),
         ("dp 4, zero 1 over 2", "pp 4"))


class Moves(TerraceTest):
    """Jobs of STEPS steps that are stopped in the middle and go on elsewhere."""

    def train_as(self, model, layout, name):
        ranks, keys = LAYOUTS[layout]
        return self.train(self.job({"model.config": model, "train.steps": STEPS, "train.eval_batches": 1,
                                    "checkpoint.every_steps": STEPS // 2, "checkpoint.keep": 0,
                                    "resources.devices_per_node": ranks, "layout": {**keys, "micro_batch": 2}}, name=name), seconds=180)

    def assert_goes_on(self, model, before, after, whole, folders):
        """`folders` maps a layout to the folder of a run of it that went to the end."""
        name = f"{folders[before].name}-goes-on-{len(self.running)}"
        target = self.folder / name / "checkpoints"
        target.mkdir(parents=True)
        middle = f"step-{STEPS // 2:08}"
        (target / middle).symlink_to(folders[before] / "checkpoints" / middle)
        result = self.train_as(model, after, name)
        self.assertEqual(sorted(result.losses), list(range(STEPS // 2 + 1, STEPS + 1)), "it went on, not from the start")
        for step, loss in result.losses.items():
            expected = float(whole.losses[step])
            self.assertLess(abs(float(loss) - expected), TOLERANCE * expected, f"{before} -> {after}, step {step}")
        expected = whole.events("eval")[-1]["loss"]
        self.assertLess(abs(result.events("eval")[-1]["loss"] - expected), TOLERANCE * expected, f"{before} -> {after}")

    def assert_all_go_on(self, model, pairs):
        whole = self.train_as(model, "one rank", "whole")
        self.assertEqual(len(whole.losses), STEPS)
        self.assertGreater(float(whole.losses[1]) - float(whole.losses[STEPS]), 0.1, "what goes on must be learning")
        folders = {}
        for index, before in enumerate(dict.fromkeys(before for before, _ in pairs)):
            self.train_as(model, before, f"from-{index}")
            folders[before] = self.folder / f"from-{index}"
        for before, after in pairs:
            with self.subTest(before=before, after=after):
                self.assert_goes_on(model, before, after, whole, folders)


class LayoutMoveTest(Moves):
    def test_checkpoints_move_between_layouts(self):
        self.assert_all_go_on({**GPT, "n_layer": 4}, PAIRS)

    def test_key_value_heads_that_ranks_share_move(self):
        self.assert_all_go_on({**LLAMA, "num_hidden_layers": 4}, (("tp 4", "cp 2, zero 2"),))


if __name__ == "__main__":
    unittest.main(verbosity=2)
