#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training on a mixture of compressed texts: as the texts themselves give it, the same on every layout and after a restart, with
epochs of each source said; and what cannot be read of it is refused."""
import gzip
import json
import pathlib
import random
import subprocess
import unittest

from support import TerraceTest, learnable_text

STEPS, BATCH, LENGTH = 24, 8, 32


class MixtureTest(TerraceTest):
    def setUp(self):
        super().setUp()
        generator = random.Random(3)
        prose = learnable_text(30_000)
        lines = "".join(json.dumps({"text": "".join(generator.choice("0123456789") for _ in range(60))}) + "\n" for _ in range(40))
        self.write("prose.txt", prose)
        self.write("digits.jsonl", lines)
        self.write("prose.txt.gz", gzip.compress(prose.encode()))
        self.write("digits.jsonl.zst", subprocess.run(["zstd", "-c"], input=lines.encode(), capture_output=True, check=True).stdout)

    def mixed(self, changes=None, prose="prose.txt.gz", digits="digits.jsonl.zst", weights=(3, 1)):
        train = [{"path": f"../{prose}", "weight": weights[0]}, {"path": [f"../{digits}"], "weight": weights[1]}]
        return self.job({"data.train": train, "train.steps": STEPS, "train.eval_every_steps": 12,
                         "train.schedule": {"name": "constant"}, **(changes or {})})

    def losses(self, job):
        result = self.train(job)
        return result.losses, [event["loss"] for event in result.events("eval")]

    def test_what_a_run_sees_of_each_source_is_shown(self):
        shown = self.terrace("data", self.mixed(), "-o", "json").json()
        prose, digits = shown["sources"]
        self.assertTrue(prose["name"].endswith("/prose.txt.gz") and digits["name"].endswith("/digits.jsonl.zst"), str(shown))
        self.assertEqual((prose["weight"], digits["weight"]), (0.75, 0.25))
        drawn = [int(source["drawn"]) for source in (prose, digits)]
        self.assertEqual(sum(drawn), STEPS * BATCH)
        self.assertLessEqual(abs(drawn[0] - 0.75 * STEPS * BATCH), 2)
        self.assertEqual(int(prose["samples"]), int(prose["tokens"]) // LENGTH)
        self.assertAlmostEqual(digits["epochs"], drawn[1] / int(digits["samples"]))
        self.assertEqual(int(shown["planned_steps"]), STEPS)
        text = self.terrace("data", self.mixed()).out
        self.assertRegex(text, r"source +weight +tokens +samples +drawn +epochs\n")
        self.assertRegex(text, r"digits\.jsonl\.zst +25\.0 % ")
        plain = self.terrace("data", self.job({"train.steps": 30}), "-o", "json").json()
        self.assertEqual(len(plain["sources"]), 1)

    def test_compressed_texts_train_as_the_texts_themselves(self):
        self.assertEqual(self.losses(self.mixed()), self.losses(self.mixed(prose="prose.txt", digits="digits.jsonl")))

    def test_the_samples_are_the_same_on_every_layout_and_the_log_says_epochs(self):
        alone, evaluated = self.losses(self.mixed())
        job = self.mixed({"resources.devices_per_node": 2})
        result = self.train(job)
        self.assertEqual(result.events("plan")[0]["plan"]["layout"]["ranks"], 2)
        for step, loss in alone.items():
            self.assertAlmostEqual(float(loss), float(result.losses[step]), delta=1e-5 * float(loss), msg=str(step))
        self.assertEqual(len(evaluated), len(result.events("eval")))
        logs = "".join(path.read_text() for path in pathlib.Path(result.done["logs"]).glob("**/rank.log"))
        self.assertRegex(logs, r"25\.0 % of the samples from \S*digits\.jsonl\.zst: \d+\.\d\d epochs of \d+ samples in 24 steps")

    def test_a_resumed_run_goes_on_with_the_next_samples(self):
        whole, _ = self.losses(self.mixed({"checkpoint.directory": str(self.folder / "whole")}))
        halves = {"checkpoint.directory": str(self.folder / "halves")}
        first, _ = self.losses(self.mixed({**halves, "train.steps": 13}))
        second, _ = self.losses(self.mixed(halves))
        self.assertEqual(first, {step: loss for step, loss in whole.items() if step <= 13})
        self.assertEqual(second, {step: loss for step, loss in whole.items() if step > 13})
        same = self.mixed({**halves, "train.steps": STEPS + 1}, weights=(0.75, 0.25))
        self.assertNotIn("weights", " ".join(event["text"] for event in self.train(same).events("warning")))
        more = self.mixed({**halves, "train.steps": 30}, weights=(1, 1))
        self.refused(self.terrace("run", more, code=None), "data.train's weights from [0.75, 0.25] to [1, 1]")

    def test_a_border_between_sources_that_has_moved_is_noticed(self):
        parts = {"checkpoint.directory": str(self.folder / "parts")}
        one, two = learnable_text(20_000), learnable_text(10_000, seed=3)
        self.write("one.txt", one)
        self.write("two.txt", two)
        self.train(self.mixed({**parts, "train.steps": 4}, prose="one.txt", digits="two.txt"))
        self.write("one.txt", one[:15_000])
        self.write("two.txt", one[15_000:] + two)
        more = self.mixed({**parts, "train.steps": 8}, prose="one.txt", digits="two.txt")
        self.refused(self.terrace("run", more, code=None), "the tokens of each source of data.train from [20000, 10000] to [15000, 15000]",
                     "checkpoint.resume: always")

    def test_a_source_that_evaluations_do_not_see_is_named(self):
        long = self.write("long.jsonl", json.dumps({"text": "a" * 1500}) + "\n")
        job = self.mixed({"data.samples": "documents", "data.validation_fraction": 0.05}, prose="digits.jsonl", digits=long.name)
        told = "evaluations see nothing of " + str(long)
        warnings = [event["text"] for event in self.train(job).events("warning")]
        self.assertEqual(len([text for text in warnings if text.startswith(told)]), 1, warnings)
        self.assertIn(told, self.terrace("data", job).err)

    def test_what_cannot_be_used_is_refused(self):
        whole = (self.folder / "prose.txt.gz").read_bytes()
        half = len(whole) // 2
        cases = {"cut.txt.gz": (whole[:half], ("cut.txt.gz", f"is cut off at byte {half}")),
                 "more.txt.gz": (whole + b"more", ("something else follows", f"at byte {len(whole)}")),
                 "other.txt.gz": (b"no gzip", ("does not begin as gzip", "without .gz"))}
        for name, (content, words) in cases.items():
            with self.subTest(name):
                self.write(name, content)
                self.refused(self.terrace("run", self.mixed(prose=name), code=None), *words)
        self.refused(self.terrace("plan", self.mixed(weights=(1, 0)), code=None), "data.train[1].weight", "above 0")
        self.refused(self.terrace("plan", self.job({"data.train": [{"path": "../prose.txt", "weight": 1}, "../digits.jsonl"]}), code=None),
                     "all entries have a weight, or none has")

    def test_compressed_texts_are_tokenised(self):
        for name in ("digits.jsonl", "digits.jsonl.zst"):
            self.terrace("tokenize", "--tokenizer", "bytes", "--output", self.folder / f"{name}.bin", self.folder / name)
        self.assertEqual((self.folder / "digits.jsonl.bin").read_bytes(), (self.folder / "digits.jsonl.zst.bin").read_bytes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
