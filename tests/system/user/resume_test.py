#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Going on from a checkpoint: one that is damaged is passed over and named, what changed since is told, and where the numbers would
be no continuation the job asks; nothing that is not finite becomes a checkpoint or a success."""
import json
import pathlib
import struct
import unittest

from support import FAILURE, GPT, INVALID_INPUT, TerraceTest

EVERY_10 = {"train.steps": 30, "checkpoint.every_steps": 10}


class DamagedTest(TerraceTest):
    def flip(self, path, offset=-100):
        content = bytearray(path.read_bytes())
        content[offset] ^= 4
        path.write_bytes(content)

    def test_a_flipped_bit_in_the_newest_lets_the_older_go_on(self):
        for name in ("model.safetensors", "optimizer.safetensors"):
            with self.subTest(name):
                job = self.job(EVERY_10)
                whole = self.train(job)
                self.flip(self.checkpoints(job)[-1] / name)
                result = self.train(job)
                self.assertEqual(result.losses, {step: whole.losses[step] for step in range(21, 31)})
                warnings = [event["text"] for event in result.events("warning")]
                self.assertEqual(len(warnings), 1, warnings)
                for word in ("step 30 is damaged and passed over", name, "goes on from step 20"):
                    self.assertIn(word, warnings[0])

    def test_where_all_are_damaged_a_person_decides(self):
        job = self.job(EVERY_10)
        self.train(job)
        for folder in self.checkpoints(job):
            self.flip(folder / "model.safetensors")
        result = self.train(job, code=INVALID_INPUT)
        self.refused(result, "every checkpoint in", "model.safetensors is damaged", "train from the beginning")
        self.assertEqual(result.events("step"), [])


class ChangedTest(TerraceTest):
    def again(self, first, changes):
        return self.job({**EVERY_10, "train.steps": 40, "checkpoint.directory": str(first.parent / "checkpoints"), **changes})

    def test_what_changed_is_told_and_what_breaks_is_asked(self):
        first = self.job(EVERY_10)
        self.train(first)
        result = self.train(self.again(first, {"train.optimizer.lr": 1e-3}))
        told = " ".join(event["text"] for event in result.events("warning"))
        self.assertIn("train.steps from 30 to 40", told)
        self.assertIn("train.optimizer.lr from 0.003 to 0.001", told)

        self.write("other.txt", "other words " * 500)
        for changes, word in (({"train.global_batch": 16}, "train.global_batch from 8 to 16"),
                              ({"data.train": "../other.txt"}, "other.txt]"),
                              ({"model.config": {**GPT, "layer_norm_epsilon": 1e-3}}, "model.config.layer_norm_epsilon")):
            with self.subTest(word):
                changed = {"train.steps": 50, **changes}
                refused = self.train(self.again(first, changed), code=INVALID_INPUT)
                self.refused(refused, "cannot resume", word, "checkpoint.resume: always", "another checkpoint.directory")
                self.assertEqual(refused.events("state"), [], "before it is a job")
                self.terrace("plan", self.again(first, changed))
        self.train(self.again(first, {"train.steps": 50, "train.global_batch": 16, "checkpoint.resume": "always"}))

    def test_other_tokens_in_files_of_the_same_names_are_asked_about(self):
        data = self.write("data.txt", "some words of a book " * 500)
        first = self.job({**EVERY_10, "data.train": str(data)})
        self.train(first)
        moved = self.train(self.again(first, {"data.train": str(self.write("moved/data.txt", data.read_text()))}))
        self.assertNotIn("contents", " ".join(event["text"] for event in moved.events("warning")))

        self.write("data.txt", "some words of a book " * 499 + "other words of a book")
        changes = {"train.steps": 50, "data.train": str(data)}
        refused = self.train(self.again(first, changes), code=INVALID_INPUT)
        self.refused(refused, "cannot resume", "the contents of data.train from 10500 tokens", "to 10500 tokens", "checkpoint.resume: always")
        result = self.train(self.again(first, {**changes, "checkpoint.resume": "always"}))
        self.assertIn("the contents of data.train", " ".join(event["text"] for event in result.events("warning")))

    def test_all_that_differs_from_the_job_of_the_directory_is_named(self):
        first = self.job(EVERY_10)
        self.train(first)
        other = self.again(first, {"model.config": {**GPT, "n_layer": GPT["n_layer"] + 1, "n_head": GPT["n_head"] * 2}, "train.seed": 7})
        self.refused(self.train(other, code=INVALID_INPUT), "model.config.n_layer", "model.config.n_head", "train.seed")

    def test_a_digit_of_a_manifest_that_has_changed_is_damage(self):
        job = self.job(EVERY_10)
        whole = self.train(job)
        newest = self.checkpoints(job)[-1] / "manifest.json"
        text = newest.read_text()
        seed = text.index('"seed": ') + len('"seed": ')
        newest.write_text(text[:seed] + str((int(text[seed]) + 1) % 10) + text[seed + 1:])
        result = self.train(job)
        self.assertEqual(result.losses, {step: whole.losses[step] for step in range(21, 31)})
        warning, = (event["text"] for event in result.events("warning"))
        self.assertIn("manifest.json is damaged: its checksum", warning)

    def test_never_beside_damaged_checkpoints_says_so(self):
        job = self.job({**EVERY_10, "checkpoint.resume": "never"})
        whole = self.train(job)
        for folder in self.checkpoints(job):
            (folder / "model.safetensors").unlink()
        result = self.train(job)
        self.assertEqual(result.losses, whole.losses)
        warning, = (event["text"] for event in result.events("warning"))
        for word in ("every checkpoint in", "model.safetensors", "checkpoint.resume is never", "begins anew"):
            self.assertIn(word, warning)


class NotFiniteTest(TerraceTest):
    def test_weights_that_are_no_numbers_end_in_failure_and_no_checkpoint(self):
        good = pathlib.Path(self.train(self.job({"train.steps": 1})).done["checkpoint"]) / "model.safetensors"
        content = bytearray(good.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        begin = 8 + length + json.loads(content[8:8 + length])["transformer.wte.weight"]["data_offsets"][0]
        content[begin:begin + 4] = struct.pack("<f", float("nan"))
        content[begin + 4:begin + 512] = struct.pack("<f", float("nan")) * 127
        job = self.job({"train.steps": 3, "model.init": str(self.write("nan.safetensors", bytes(content)))})
        result = self.train(job, code=FAILURE)
        self.refused(result, "not finite")
        self.assertEqual(self.checkpoints(job), [])
        # No advice of what is so already, nor of a checkpoint that there is not.
        job = self.job({"train.steps": 30, "model.init": str(self.folder / "nan.safetensors"), "checkpoint.every_steps": 1})
        result = self.train(job, code=FAILURE)
        self.refused(result, "10 steps in a row; look at model.init and the data")
        for words in ("fp32", "earlier checkpoint"):
            self.assertNotIn(words, result.done["message"])
        self.assertEqual(self.checkpoints(job), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
