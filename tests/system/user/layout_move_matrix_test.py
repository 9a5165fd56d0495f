#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From every layout of layout_move_test to every other one, for a model with tied and one with untied embeddings."""
import unittest

from layout_move_test import LAYOUTS, Moves
from support import LLAMA, QWEN3


class LayoutMoveMatrixTest(Moves):
    def move_all(self, model):
        self.assert_all_go_on({**model, "num_hidden_layers": 4}, [(before, after) for before in LAYOUTS for after in LAYOUTS])

    def test_tied(self):
        self.move_all(QWEN3)

    def test_untied(self):
        self.move_all(LLAMA)


if __name__ == "__main__":
    unittest.main(verbosity=2)
