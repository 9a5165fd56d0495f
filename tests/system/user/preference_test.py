#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimisation (`train.preference`): adapters learn from lines with a chosen and a rejected answer, in TRL's forms,
which can be looked at before; the job goes on exactly, and what does not go with it is refused."""
import json
import pathlib
import random
import re
import unittest

from frozen_test import CONSTANT, tensors_of
from support import INVALID_INPUT, LLAMA, TerraceTest

GOOD, BAD = "yes, it is", "no, never"
TURNS = ("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}")


def words(generator):
    return "".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))


class PreferenceTest(TerraceTest):
    def lines(self, name, make, count=48):
        generator = random.Random(5)
        return self.write(f"{name}.jsonl", "".join(json.dumps(make(words(generator))) + "\n" for _ in range(count)))

    def texts(self, name="texts"):
        return self.lines(name, lambda word: {"prompt": f"{word}? ", "chosen": GOOD, "rejected": BAD})

    def preference(self, train, changes=None):
        return self.job({"model.config": LLAMA, "model.lora": {"rank": 4, "alpha": 8}, "data.train": str(train),
                         "data.sequence_length": 32, "data.validation_fraction": 0.2, **CONSTANT, "train.steps": 8,
                         "train.global_batch": 8, "train.optimizer.lr": 5e-3, "train.preference": {"beta": 0.5},
                         "checkpoint.directory": str(self.folder / "checkpoints"), **(changes or {})})

    def rewards(self, result):
        """By step, what the log of the first rank says: (accuracy, margin); and of the validation."""
        logs = "".join(path.read_text() for path in pathlib.Path(result.done["logs"]).glob("**/rank.log"))
        steps = {int(step): (float(accuracy), float(margin)) for step, accuracy, margin in
                 re.findall(r"step (\d+) of .*accuracy ([\d.]+)  margin (-?[\d.]+)", logs)}
        held_out = re.findall(r"validation loss ([\d.]+) over (\d+) pairs  accuracy ([\d.]+)", logs)
        return steps, held_out

    def test_the_chosen_answer_wins(self):
        result = self.train(self.preference(self.texts()))
        losses = [float(result.losses[step]) for step in sorted(result.losses)]
        # Adapters begin as nothing: neither answer is preferred more than by the reference.
        self.assertAlmostEqual(losses[0], 0.693147, delta=1e-5)
        self.assertLess(losses[-1], 0.3)
        steps, held_out = self.rewards(result)
        self.assertEqual(steps[1], (0, 0))
        self.assertEqual(steps[8][0], 1)
        self.assertGreater(steps[8][1], 0.5)
        self.assertLess(float(held_out[-1][0]), 0.5)
        self.assertEqual(float(held_out[-1][2]), 1)

    def test_it_is_the_same_on_ranks_and_goes_on_exactly(self):
        train = self.texts()
        alone = self.train(self.preference(train, {"checkpoint.directory": str(self.folder / "alone")}))
        two = {"resources.devices_per_node": 2}
        for name, changes in (("data", {"layout.dp": 2, "layout.zero": 3}), ("tensor", {"layout.tp": 2}),
                              ("stages", {"layout.pp": 2})):
            with self.subTest(name):
                result = self.train(self.preference(train, {**two, **changes, "checkpoint.directory": str(self.folder / name)}))
                for step, loss in alone.losses.items():
                    self.assertAlmostEqual(float(result.losses[step]), float(loss), delta=1e-4)
        parts = {"checkpoint.directory": str(self.folder / "parts")}
        self.train(self.preference(train, {**parts, "train.steps": 3}))
        self.train(self.preference(train, parts))
        last = [sorted((self.folder / name).glob("step-*"))[-1] for name in ("alone", "parts")]
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(tensors_of(last[0] / file), tensors_of(last[1] / file))

    def test_pairs_can_be_looked_at(self):
        user, yes, no = ({"role": "user", "content": "so?"}, {"role": "assistant", "content": GOOD},
                         {"role": "assistant", "content": BAD})
        chat = {"data.chat_template": str(self.write("turns.jinja", TURNS))}
        for name, make, prompt, ends, changes in (
                ("explicit", lambda word: {"prompt": "so? ", "chosen": GOOD, "rejected": BAD}, "so? ", "", {}),
                ("implicit", lambda word: {"chosen": "so? " + GOOD, "rejected": "so? " + BAD}, "so?", "", {}),
                ("messages", lambda word: {"prompt": [user], "chosen": [yes], "rejected": [no]}, "u:so?;a:", ";", chat),
                ("conversations", lambda word: {"prompt": "so?", "chosen": [user, yes], "rejected": [user, no]}, "u:so?;a:", ";",
                 chat)):
            with self.subTest(name):
                job = self.preference(self.lines(name, make), changes)
                shown = self.terrace("data", job, "--rows", 2, "--steps", 2, "-o", "json").json()
                rows = [row["spans"] for row in shown["rows"]]
                for row, answer in zip(rows, (GOOD, BAD)):
                    self.assertEqual([(span["text"], span["counted"]) for span in row[:1]], [(prompt, False)])
                    self.assertTrue(row[1]["counted"])
                    self.assertEqual(row[1]["text"].strip(), answer + ends)
        text = self.terrace("data", job, "--rows", 2, "--steps", 1).out
        self.assertIn("the chosen answer of a pair", text)
        self.assertIn("the rejected answer of a pair", text)

    def test_what_is_too_long_is_cut_and_counted(self):
        mixed = self.write("mixed.jsonl", "".join(
            json.dumps({"prompt": "x" * length, "chosen": GOOD, "rejected": BAD}) + "\n" for length in [4, 28, 40] * 16))
        shown = self.terrace("data", self.preference(mixed), "--rows", 1, "--steps", 1)
        self.assertRegex(shown.err, r"\d+ pairs of data.train are left out: one of their answers has no token within "
                                    r"data.sequence_length 32")
        self.assertRegex(shown.err, r"\d+ pairs of data.train are longer than data.sequence_length 32 and are cut at their end")

    def test_what_does_not_go_with_it_is_refused(self):
        train = self.texts()
        two = {"resources.devices_per_node": 2}
        for changes, what in (
                ({"model.lora": None}, ("train.preference", "a job without adapters", "model.lora: {rank: 16}")),
                ({"train.z_loss": 1e-3}, ("train.z_loss", "left out with train.preference")),
                ({"train.label_smoothing": 0.1}, ("train.label_smoothing", "left out", "train.preference.label_smoothing")),
                ({"data.samples": "packed"}, ("data.samples", "packed", "documents with train.preference")),
                ({"data.loss_on": "all"}, ("data.loss_on", "answers with train.preference")),
                ({"train.global_batch": 7}, ("train.global_batch", "7", "even with train.preference", "8")),
                ({"train.preference": {"beta": 0}}, ("train.preference.beta", "0")),
                ({"train.preference": {"loss": "hinge"}}, ("train.preference.loss", "hinge", "sigmoid")),
                ({"train.preference": {"label_smoothing": 0.5}}, ("train.preference.label_smoothing", "0.5")),
                ({"layout.micro_batch": 1}, ("layout.micro_batch",)),
                ({**two, "layout.cp": 2}, ("layout.cp", "2", "1 with train.preference")),
                ({"train.optimizer.groups": {"*norm*": {"frozen": False}}}, ("is trained, must be frozen", "its adapters"))):
            with self.subTest(str(changes)):
                self.refused(self.terrace("plan", self.preference(train, changes), code=None), *what)

    def test_lines_that_are_no_pairs_are_refused(self):
        for name, line, what in (
                ("missing", {"prompt": "a", "chosen": "b"}, ('missing.jsonl:1', 'no field "rejected"')),
                ("mixed", {"prompt": "a", "chosen": "b", "rejected": []}, ("mixed.jsonl:1", "one of", "a text, the other a list")),
                ("kind", {"prompt": "a", "chosen": 1, "rejected": "b"}, ("kind.jsonl:1", '"chosen" is number')),
                ("text", {"text": "a"}, ("text.jsonl:1", 'no field "chosen"', "train.preference"))):
            with self.subTest(name):
                bad = self.write(f"{name}.jsonl", json.dumps(line) + "\n")
                self.refused(self.terrace("data", self.preference(bad), code=None), *what)
        plain = self.job({"data.train": str(self.texts()), "data.sequence_length": 32})
        self.refused(self.terrace("data", plain, code=None), "texts.jsonl:1", "a pair of answers", "train.preference")
        text = self.write("plain.txt", "words\n" * 99)
        self.refused(self.terrace("data", self.preference(text), code=None), "plain.txt", "is no .jsonl file")


if __name__ == "__main__":
    unittest.main()
