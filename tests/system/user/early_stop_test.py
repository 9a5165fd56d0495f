#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training that ends when the validation loss does not get better, the checkpoint of the best evaluation, and steps that are written
as tokens, as a user sees them."""
import json
import unittest

from support import INVALID_INPUT, TerraceTest

# Nothing is better by 50 nats: the first evaluation is the best, and each one after it is worse.
NEVER_BETTER = {"train.steps": 20, "train.eval_every_steps": 2, "train.early_stop": {"evaluations": 2, "improvement": 50}}


def steps_of(directory):
    return [int(path.name.removeprefix("step-")) for path in sorted(directory.glob("step-*"))]


class EarlyStopTest(TerraceTest):
    def run_in(self, directory, changes):
        return self.train(self.job({**NEVER_BETTER, "checkpoint.directory": str(directory), **changes}))

    def test_it_ends_and_keeps_the_best(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                directory = self.folder / f"ranks{ranks}"
                changes = {"checkpoint.keep": 1, "checkpoint.every_steps": 1, "checkpoint.keep_best": True,
                           "resources.devices_per_node": ranks}
                result = self.run_in(directory, changes)
                self.assertEqual(max(result.losses), 6, "after the first evaluation and two that were worse")
                self.assertEqual((result.done["state"], result.done["reason"]), ("SUCCEEDED", "COMPLETED"))
                self.assertIn("ended after step 6 of 20: none of the last 2 validation losses was better than", result.done["message"])
                self.assertIn("after step 2 (train.early_stop)", result.done["message"])
                self.assertEqual(result.done["best_eval_step"], 2)
                self.assertEqual(steps_of(directory), [2, 6], "the best, and the newest")
                manifest = json.loads((directory / "step-00000006" / "manifest.json").read_text())
                self.assertRegex(self.terrace("ckpt", "ls", directory).out, r"step-00000002  best \(validation loss \d\.\d{4}\)\n")
                out = self.terrace("ckpt", "export", directory, "--best", "--output", self.folder / f"best{ranks}").out
                self.assertIn("step-00000002 to", out)
                self.assertEqual((manifest["validation"]["best_step"], manifest["validation"]["worse"]), (2, 2))
                self.assertAlmostEqual(manifest["validation"]["best_loss"], result.done["best_eval_loss"], places=6)

    def test_a_job_that_resumes_remembers(self):
        directory = self.folder / "resumed"
        self.run_in(directory, {"train.steps": 5})  # its last step is evaluated too
        again = self.run_in(directory, {"train.steps": 5})
        self.assertEqual(again.losses, {}, "all steps are done")
        longer = self.run_in(directory, {})
        self.assertEqual(longer.losses, {}, "two evaluations were worse, at steps 4 and 5")
        self.assertIn("ended after step 5 of 20", longer.done["message"])
        more = self.run_in(directory, {"train.early_stop": {"evaluations": 3, "improvement": 50}})
        self.assertEqual(sorted(more.losses), [6])
        self.assertEqual(more.done["best_eval_step"], 2)

    def test_tokens_are_steps(self):
        result = self.train(self.job({"train.steps": None, "train.tokens": 1300}))  # 8 x 32 tokens a step
        self.assertEqual(sorted(result.losses), [1, 2, 3, 4, 5, 6])

    def test_the_plan_shows_the_groups(self):
        job = self.job({"train.optimizer.groups": {"*.bias": {"lr_scale": 2, "weight_decay": 0}}, "train.optimizer.layer_decay": 0.5})
        groups = json.loads(self.terrace("plan", job, "-o", "json").out)["parameter_groups"]
        self.assertEqual([group["match"] for group in groups], ["*.bias", ""])
        self.assertEqual([(group["min_lr_scale"], group["max_lr_scale"]) for group in groups], [(0.5, 2), (0.125, 1)])
        text = self.terrace("plan", job).out
        self.assertIn("parameter groups", text)
        self.assertIn("all others", text)
        wrong = self.job({"train.optimizer.groups": {"*.biass": {"lr_scale": 2}}})
        self.refused(self.terrace("plan", wrong, code=INVALID_INPUT), "train.optimizer.groups", "'*.biass'", "match a tensor")


if __name__ == "__main__":
    unittest.main()
