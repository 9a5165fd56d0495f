#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace eval`: the loss of a checkpoint on texts is that of the job's own evaluation (which transformers_test.py holds against
transformers), whatever the batch; every token but the first is predicted once, of prompts with completions the answers."""
import json
import math
import unittest

from support import LLAMA, TerraceTest, learnable_text

LENGTH = 32


class EvalTest(TerraceTest):
    def checkpoint(self, changes=None):
        """Of a few steps, and the loss that the job found on `held_out.txt`: 24 windows, of which an evaluation takes all."""
        text = learnable_text(24 * LENGTH + 1, seed=11)[:24 * LENGTH + 1]
        self.held_out = self.write("held_out.txt", text)
        job = self.job({"model.config": LLAMA, "data.sequence_length": LENGTH, "data.validation": "../held_out.txt",
                        "train.global_batch": 8, "train.eval_batches": 3, "train.steps": 30, **(changes or {})})
        result = self.train(job)
        return result.done["checkpoint"], result.events("eval")[-1]["loss"]

    def eval(self, checkpoint, *files, **options):
        flags = [flag for name, value in options.items() for flag in (f"--{name}", str(value))]
        data = [flag for file in files for flag in ("--data", str(file))]
        return json.loads(self.terrace("eval", checkpoint, *data, *flags, "-o", "json").out)

    def test_it_is_the_loss_of_the_jobs_own_evaluation(self):
        for precision in ("fp32", "bf16"):
            with self.subTest(precision):
                checkpoint, expected = self.checkpoint({"train.precision": precision})
                answer = self.eval(checkpoint, self.held_out)
                self.assertEqual(answer["sequence_length"], LENGTH)
                result, = answer["results"]
                self.assertEqual((result["tokens"], result["predicted"]), (24 * LENGTH + 1, 24 * LENGTH))
                self.assertAlmostEqual(result["loss"], expected, delta=1e-6 * expected)
                self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), delta=1e-9 * result["perplexity"])
                text = self.terrace("eval", checkpoint, "--data", self.held_out).out
                self.assertRegex(text, rf"held_out.txt +{24 * LENGTH + 1} +{24 * LENGTH} +{expected:.4f}")

    def test_every_token_but_the_first_counts_once(self):
        checkpoint, _ = self.checkpoint()
        files = [self.write("odd.txt", learnable_text(1000, seed=3)[:997]), self.write("two.txt", "ab")]
        one = self.eval(checkpoint, *files, batch=1)["results"]
        self.assertEqual([(result["tokens"], result["predicted"]) for result in one], [(997, 996), (2, 1), (999, 997)])
        total = 996 * one[0]["loss"] + one[1]["loss"]
        self.assertAlmostEqual(one[2]["loss"], total / 997, delta=1e-9)
        for batch in (7, 64):
            for result, expected in zip(self.eval(checkpoint, *files, batch=batch)["results"], one):
                self.assertAlmostEqual(result["loss"], expected["loss"], delta=1e-5 * expected["loss"], msg=f"batch {batch}")
        # With less of the text before a token the loss is higher; with the same it is the same.
        short = self.eval(checkpoint, files[0], length=4)
        self.assertEqual((short["sequence_length"], short["results"][0]["predicted"]), (4, 996))
        self.assertGreater(short["results"][0]["loss"], one[0]["loss"])

    def test_of_prompts_with_completions_the_answers_count(self):
        checkpoint, _ = self.checkpoint()
        lines = [{"prompt": "the king saw ", "completion": "bread."}, {"prompt": "a shepherd took ", "completion": "the ark."}]
        file = self.write("answers.jsonl", "\n".join(json.dumps(line) for line in lines) + "\n")
        result, = self.eval(checkpoint, file)["results"]
        self.assertGreaterEqual(result["predicted"], len("bread.") + len("the ark."))
        self.assertLessEqual(result["predicted"], len("bread.") + len("the ark.") + 2, "and the ends of the two")

    def test_what_cannot_be_is_refused(self):
        checkpoint, _ = self.checkpoint()
        one = self.write("one.txt", "a")
        for arguments, words in ((("--data", "nowhere.txt"), ("nowhere.txt",)),
                                 (("--data", one), ("one.txt: has 1 token, must have at least two",)),
                                 (("--data", self.held_out, "--length", "4096"), ("4096", "64"))):
            with self.subTest(words[0]):
                self.refused(self.terrace("eval", checkpoint, *arguments, code=None), *words)
        self.refused(self.terrace("eval", self.folder, "--data", self.held_out, code=None), "manifest.json")
        self.assertNotEqual(self.terrace("eval", checkpoint, "--data", one, code=None).code, 0)


if __name__ == "__main__":
    unittest.main()
