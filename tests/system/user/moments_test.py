#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adam's moments in fewer bits (`formats.moments`): the loss falls as with f32, a job that goes on has the bits of one that was never
stopped, a checkpoint in another format is converted and the log says so, and what cannot be is refused in a sentence."""
import json
import pathlib
import struct
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest

CONSTANT = {"train.schedule": {"name": "constant"}}  # the length of a run that is gone on with does not matter
WIDE = {"model.config": {**LLAMA, "hidden_size": 64, "intermediate_size": 128}}


def state_of(checkpoint):
    return {name: (checkpoint / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def header_of(file):
    content = file.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length])


class MomentsTest(TerraceTest):
    def logs(self, result):
        return "".join(path.read_text() for path in sorted(pathlib.Path(result.done["logs"]).glob("**/rank.log")))

    def run_in(self, moments, steps, directory=None, changes=None):
        job = self.job({**WIDE, **CONSTANT, "formats.moments": moments, "train.steps": steps, **(changes or {}),
                        **({"checkpoint.directory": str(directory)} if directory else {})})
        return job, self.train(job)

    def test_the_loss_falls_as_with_f32(self):
        last = {}
        for moments in ("f32", "bf16", "int8"):
            _, result = self.run_in(moments, 80)
            last[moments] = sum(float(result.losses[step]) for step in range(71, 81)) / 10
        self.assertLess(last["f32"], 2.0, "it learns")
        for moments in ("bf16", "int8"):
            self.assertLess(abs(last[moments] - last["f32"]), 0.01 * last["f32"], last)

    def test_a_job_that_goes_on_has_the_bits_of_one_that_was_not_stopped(self):
        ranks = {"layout.dp": 2, "layout.zero": 3, "resources.devices_per_node": 2}
        for moments in ("bf16", "int8"):
            for name, changes in (("alone", {}), ("shards", ranks), ("host", {"layout.offload": {"optimizer": "host"},
                                                                             "resources.host_memory": "256MiB"})):
                with self.subTest(moments=moments, name=name):
                    whole, expected = self.run_in(moments, 8, changes=changes)
                    directory = self.folder / f"{moments}-{name}"
                    _, first = self.run_in(moments, 4, directory, changes)
                    second, then = self.run_in(moments, 8, directory, changes)
                    self.assertEqual({**first.losses, **then.losses}, expected.losses)
                    newest = sorted(directory.glob("step-*"))[-1]
                    self.assertEqual(state_of(newest), state_of(self.checkpoints(whole)[-1]))

    def test_checkpoints_hold_moments_as_they_rest(self):
        job, _ = self.run_in("int8", 2)
        header = header_of(self.checkpoints(job)[-1] / "optimizer.safetensors")
        self.assertEqual(header["__metadata__"]["moment_block"], "256")
        matrix = "model.layers.0.mlp.down_proj.weight"
        self.assertEqual((header[f"{matrix}.adam_m"]["dtype"], header[f"{matrix}.adam_m"]["shape"]), ("U8", [64, 128]))
        self.assertEqual((header[f"{matrix}.adam_v_scales"]["dtype"], header[f"{matrix}.adam_v_scales"]["shape"]), ("F32", [32]))
        self.assertEqual(header["model.norm.weight.adam_v"]["dtype"], "F32")

    def test_a_checkpoint_in_another_format_is_converted_and_said(self):
        for before, after, words in (("int8", "f32", "in int8 blocks of 256 and were converted to f32"),
                                     ("f32", "int8", "in f32 and were converted to int8 blocks of 256"),
                                     ("bf16", "int8", "in bf16 and were converted to int8 blocks of 256")):
            with self.subTest(f"{before} to {after}"):
                directory = self.folder / f"{before}-{after}"
                self.run_in(before, 10, directory)
                job, result = self.run_in(after, 20, directory)
                self.assertIn(words, self.logs(result))
                _, exact = self.run_in("f32", 20)
                loss = float(exact.losses[20])
                self.assertAlmostEqual(float(result.losses[20]), loss, delta=0.05 * loss)

    def test_what_cannot_be_is_refused(self):
        for changes, words in (({"formats.moments": "f16"}, ("formats.moments", "must be one of f32, bf16, int8")),
                               ({"formats.moments": "int8", "train.precision": "bf16", "train.optimizer.stochastic_rounding": True},
                                ("formats.moments", "f32 or bf16 with train.optimizer.stochastic_rounding", "try bf16")),
                               ({"formats.moments": "int8", "layout.tp": 4, "resources.devices_per_node": 4,
                                 "model.config": {**LLAMA, "num_key_value_heads": 4}},
                                ("formats.moments", "with tp 4", "a block needs 16", "try bf16"))):
            with self.subTest(words[1]):
                self.refused(self.terrace("plan", self.job(changes), code=INVALID_INPUT), *words)

    def test_a_plan_names_the_format_and_counts_its_bytes(self):
        model = {"model.config": {**LLAMA, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}}
        held = {}
        for moments in ("f32", "bf16", "int8"):
            job = self.job({**model, "formats.moments": moments})
            plan = json.loads(self.terrace("plan", job, "-o", "json").out)
            memory = plan["memory"]["stages"][0] if "stages" in plan["memory"] else plan["memory"][0]
            held[moments] = sum(int(line["bytes"]) for line in memory["lines"] if line["class"].lower() == "optimizer")
            text = self.terrace("plan", job).out
            self.assertEqual(f"moments in {moments}" in " ".join(text.split()), moments != "f32", text)
        matrices = 2 * 256 * 256 + 4 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 768)
        vectors = 8 * 9 * 256
        self.assertEqual(held["bf16"], 4 * matrices + vectors)
        self.assertEqual(held["int8"], 2 * matrices * 260 // 256 + vectors)
        self.assertAlmostEqual(held["f32"], 8 * matrices + vectors, delta=0.003 * held["f32"], msg="matrices begin on pages")


if __name__ == "__main__":
    unittest.main()
