#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A part of a model that is frozen (`train.optimizer.groups`): it keeps every bit on every layout, takes no optimizer states, plans
count it so, and a job that goes on is told where what is frozen has changed."""
import json
import pathlib
import struct
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest

CONSTANT = {"train.schedule": {"name": "constant"}}
# The layers and the head, not the embedding; of the second layer only the norms.
GROUPS = {"*embed_tokens*": {"frozen": True}, "model.layers.1.*": {"frozen": True}, "model.layers.1.*norm*": {"frozen": False}}
FROZEN = ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight")
TRAINED = ("model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight", "model.norm.weight", "lm_head.weight")
LOWER = {"*embed_tokens*": {"frozen": True}, "model.layers.0.*": {"frozen": True}}


def tensors_of(file):
    """Type and bytes of each tensor by name."""
    content = file.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], content[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


class FrozenTest(TerraceTest):
    def frozen_job(self, groups, steps, directory, changes=None):
        return self.job({"model.config": {**LLAMA, "tie_word_embeddings": False}, **CONSTANT, "train.optimizer.groups": groups,
                         "train.steps": steps, "checkpoint.directory": str(directory), **(changes or {})})

    def checkpoint(self, directory):
        return sorted(directory.glob("step-*"))[-1]

    def test_what_is_frozen_keeps_every_bit_and_has_no_states(self):
        two = {"resources.devices_per_node": 2}
        bf16 = {"train.precision": "bf16", "formats.parameter": "bf16"}
        host = {"layout.offload": {"optimizer": "host", "parameter": "host"}, "resources.host_memory": "256MiB"}
        for name, changes in (("alone", {}), ("bf16", bf16), ("zero1", {**two, **bf16, "layout.dp": 2, "layout.zero": 1}),
                              ("zero3", {**two, **bf16, "layout.dp": 2, "layout.zero": 3}), ("tensor", {**two, "layout.tp": 2}),
                              ("stages", {**two, "layout.pp": 2}), ("host", {**bf16, **host})):
            with self.subTest(name):
                directory = self.folder / name
                self.train(self.frozen_job(GROUPS, 2, directory, changes))
                before = tensors_of(self.checkpoint(directory) / "model.safetensors")
                self.train(self.frozen_job(GROUPS, 6, directory, changes))
                newest = self.checkpoint(directory)
                after = tensors_of(newest / "model.safetensors")
                for tensor in FROZEN:
                    self.assertEqual(after[tensor], before[tensor], tensor)
                    self.assertEqual(after[tensor][0], "BF16" if "formats.parameter" in changes else "F32", tensor)
                for tensor in TRAINED:
                    self.assertEqual(after[tensor][0], "F32", tensor)
                    self.assertNotEqual(after[tensor], before[tensor], tensor)
                states = tensors_of(newest / "optimizer.safetensors")
                self.assertEqual({name.rsplit(".", 1)[0] for name in states}, set(after) - {
                    tensor for tensor in after if tensor == "model.embed_tokens.weight" or
                    (tensor.startswith("model.layers.1.") and "norm" not in tensor)})

    def test_stages_without_anything_to_train_do_as_one_rank_does(self):
        stages = {"layout.pp": 2, "resources.devices_per_node": 2, "layout.micro_batch": 2}
        alone = self.train(self.frozen_job(LOWER, 6, self.folder / "alone", {"layout.micro_batch": 2}))
        for name, changes in (("1f1b", stages), ("zb-h1", {**stages, "layout.schedule": "zb-h1"}),
                              ("bf16", {**stages, "train.precision": "bf16", "formats.parameter": "bf16"})):
            with self.subTest(name):
                result = self.train(self.frozen_job(LOWER, 6, self.folder / name, changes))
                for step, loss in alone.losses.items():
                    delta = 2e-2 if name == "bf16" else 1e-5
                    self.assertAlmostEqual(float(result.losses[step]), float(loss), delta=delta * float(loss))

    def test_a_job_that_goes_on_is_told_what_changed(self):
        directory = self.folder / "changed"
        self.train(self.frozen_job(LOWER, 2, directory))
        more = {**LOWER, "model.layers.1.*": {"frozen": True}}
        result = self.train(self.frozen_job(more, 4, directory))
        logs = "".join(path.read_text() for path in sorted(pathlib.Path(result.done["logs"]).glob("**/rank.log")))
        self.assertRegex(logs, r"the optimizer states of 9 tensors in .* are not used: train.optimizer.groups freezes these now")
        result = self.terrace("run", self.frozen_job(LOWER, 6, directory), code=INVALID_INPUT)
        self.assertIn("has the weights of model.layers.1.", result.err + result.out)
        self.assertIn("was frozen. Resume with train.optimizer.groups as it was", result.err + result.out)

    def test_plans_count_it(self):
        everything = self.terrace("plan", self.job({"model.config": LLAMA}), "-o", "json")
        job = self.job({"model.config": LLAMA, "train.optimizer.groups": LOWER})
        text = self.terrace("plan", job).out
        self.assertRegex(text, r"parameters, of\s+which [\d,]+\s+are\s+trained\s+\([\d.]+\s+%\)")
        self.assertRegex(text, r"model.layers.0.\* +\d+ +[\d,]+ +frozen")
        plan = json.loads(self.terrace("plan", job, "-o", "json").out)
        whole = json.loads(everything.out)
        frozen = int(plan["model"]["frozen_parameters"])
        self.assertGreater(frozen, 0)
        self.assertLess(plan["model"]["flops_per_token"], whole["model"]["flops_per_token"])

        def states(of):
            return sum(int(line["bytes"]) for line in of["memory"][0]["lines"] if line["class"] == "OPTIMIZER")
        self.assertAlmostEqual(states(whole) - states(plan), 8 * frozen, delta=4 * 8192)  # pages

    def test_what_makes_no_sense_is_refused(self):
        for groups, words in (({"*": {"frozen": True}}, ("every tensor frozen", "leave something to train", "{frozen: false}")),
                              ({"*.bias": {"frozen": True, "lr_scale": 2}}, ("frozen beside how it is trained", "{frozen: true}")),
                              ({"*.bias": {"frozen": "maybe"}}, ("*.bias.frozen", '"maybe"', "true or false")),
                              ({"*.bias": {"frosen": True}}, ("an unknown key", "frozen")),
                              ({"*q_proj*": {"frozen": True}}, ("q_proj.weight and", "treat them alike"))):
            with self.subTest(str(groups)):
                job = self.job({"model.config": LLAMA, "train.optimizer.groups": groups})
                self.refused(self.terrace("plan", job, code=INVALID_INPUT), "train.optimizer.groups", *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
