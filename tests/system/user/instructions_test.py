#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training files of prompts and answers: the loss counts the answers alone, so that it goes to nothing where answers can be learnt
and prompts are noise; whole texts of the same words keep the noise. What cannot be read is refused with its line."""
import json
import random
import unittest

from support import LLAMA, TerraceTest

ANSWER = "so it is"


class InstructionsTest(TerraceTest):
    def lines(self, kind, count=96):
        generator = random.Random(5)
        rows = []
        for _ in range(count):
            noise = "".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(12)) + ": "
            rows.append({"text": noise + ANSWER} if kind == "text" else {"prompt": noise, "completion": ANSWER})
        return self.write(f"{kind}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def instruct(self, train, changes=None):
        return self.job({"model.config": LLAMA, "data.train": str(train), "data.samples": "documents", "data.sequence_length": 32,
                         "data.validation_fraction": 0.1, "train.steps": 60, "train.global_batch": 8,
                         "train.optimizer.lr": 1e-2, "train.schedule": {"name": "constant"},
                         "checkpoint.directory": str(self.folder / train.stem), **(changes or {})})

    def test_the_loss_counts_answers_alone(self):
        last = {}
        for kind in ("prompts", "text"):
            losses = self.train(self.instruct(self.lines(kind))).losses
            last[kind] = float(losses[max(losses)])
        self.assertLess(last["prompts"], 0.1)
        self.assertGreater(last["text"], 1.0)  # 13 of 21 targets are letters of noise: log 26 each

    def test_adapters_learn_answers(self):
        base = self.instruct(self.lines("text"))
        checkpoint = self.train(base).done["checkpoint"]
        job = self.instruct(self.lines("prompts"), {"model.init": checkpoint, "model.lora": {"rank": 4},
                                                    "checkpoint.directory": str(self.folder / "adapters")})
        losses = self.train(job).losses
        self.assertLess(float(losses[max(losses)]), 0.2)

    def test_what_is_trained_on_can_be_looked_at(self):
        job = self.instruct(self.lines("prompts"))
        shown = self.terrace("data", job, "--rows", 2, "--steps", 5, "-o", "json").json()
        rows = 5 * 8
        self.assertEqual({key: int(shown[key]) for key in ("steps", "rows_seen", "positions", "tokens", "counted", "rows_without")},
                         {"steps": 5, "rows_seen": rows, "positions": rows * 32, "tokens": rows * (14 + len(ANSWER) - 1),
                          "counted": rows * len(ANSWER), "rows_without": 0})
        self.assertEqual(len(shown["rows"]), 2)
        for row in shown["rows"]:
            prompt, answer = row["spans"]
            self.assertRegex(prompt["text"], "^[a-z]{12}: $")
            self.assertEqual((prompt["counted"], answer["counted"], answer["text"]), (False, True, ANSWER))
        text = self.terrace("data", job).out
        self.assertIn("  counted  | so it is\n", text)
        self.assertRegex(text, r"tokens +10,080, 65.6 % of the positions")
        stream = self.instruct(self.lines("text"), {"data.samples": "stream"})
        shown = self.terrace("data", stream, "--steps", 3, "-o", "json").json()
        self.assertEqual(shown["counted"], shown["positions"])
        self.refused(self.terrace("data", self.folder / "nothing.yaml", code=None), "nothing.yaml")
        self.refused(self.terrace("data", self.instruct(self.folder / "nothing.jsonl"), code=None), "nothing.jsonl")

    def test_what_cannot_be_read_is_refused(self):
        for name, row, words in (("chat", {"messages": [{"role": "user", "content": "hi"}]}, ("chat.jsonl:1", "needs a chat template")),
                                 ("half", {"prompt": "x"}, ("half.jsonl:1", 'no field "completion"')),
                                 ("number", {"instruction": 1, "output": "x"}, ("number.jsonl:1", "must be a string"))):
            with self.subTest(name):
                file = self.write(f"{name}.jsonl", json.dumps(row) + "\n")
                result = self.terrace("run", self.instruct(file), code=None)
                for word in words:
                    self.assertIn(word, result.err + result.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
