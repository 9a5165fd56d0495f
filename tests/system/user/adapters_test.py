#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (`model.lora`): they train beside a model that keeps every bit, from weights that know nothing of them, on every
layout, go on from a checkpoint, generate text, are counted in plans, and what makes no sense is refused."""
import json
import pathlib
import unittest

from frozen_test import CONSTANT, tensors_of
from support import INVALID_INPUT, LLAMA, TerraceTest

LORA = {"rank": 4, "alpha": 8}


class AdaptersTest(TerraceTest):
    def adapter_job(self, steps, directory, changes=None):
        return self.job({"model.config": LLAMA, "model.lora": LORA, **CONSTANT, "train.steps": steps,
                         "checkpoint.directory": str(directory), **(changes or {})})

    def checkpoint(self, directory):
        return sorted(directory.glob("step-*"))[-1]

    def base(self):
        """A checkpoint of a model without adapters."""
        directory = self.folder / "base"
        self.train(self.job({"model.config": LLAMA, **CONSTANT, "train.steps": 3, "checkpoint.directory": str(directory)}))
        return self.checkpoint(directory)

    def test_adapters_train_beside_a_model_that_keeps_every_bit(self):
        base = self.base()
        init = {"model.init": str(base)}
        plain = self.train(self.job({"model.config": LLAMA, **CONSTANT, **init, "train.steps": 1,
                                     "checkpoint.directory": str(self.folder / "plain")}))
        two = {"resources.devices_per_node": 2}
        alone = None
        for name, changes in (("alone", {}), ("zero1", {**two, "layout.dp": 2, "layout.zero": 1}),
                              ("zero3", {**two, "layout.dp": 2, "layout.zero": 3}), ("tensor", {**two, "layout.tp": 2}),
                              ("stages", {**two, "layout.pp": 2}), ("recomputed", {"layout.recompute": "full"})):
            with self.subTest(name):
                directory = self.folder / name
                result = self.train(self.adapter_job(6, directory, {**init, **changes}))
                alone = alone or result
                # B begins at zero: the first loss is that of the model.
                first = min(plain.losses)
                self.assertAlmostEqual(float(result.losses[first]), float(plain.losses[first]), delta=1e-5)
                for step, loss in alone.losses.items():
                    self.assertAlmostEqual(float(result.losses[step]), float(loss), delta=1e-5 * float(loss))
                before = tensors_of(base / "model.safetensors")
                after = tensors_of(self.checkpoint(directory) / "model.safetensors")
                self.assertEqual({tensor: after[tensor] for tensor in before}, before)
                adapters = set(after) - set(before)
                self.assertEqual(len(adapters), 2 * 7 * LLAMA["num_hidden_layers"])
                states = tensors_of(self.checkpoint(directory) / "optimizer.safetensors")
                self.assertEqual({state.rsplit(".", 1)[0] for state in states}, adapters)
                self.assertFalse([tensor for tensor in adapters if not any(after[tensor][1])])

    def test_a_job_goes_on_as_if_it_had_not_stopped(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(self.adapter_job(6, whole))
        self.train(self.adapter_job(3, parts))
        self.train(self.adapter_job(6, parts))
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(tensors_of(self.checkpoint(whole) / file), tensors_of(self.checkpoint(parts) / file))
        text = self.terrace("generate", self.checkpoint(parts), "--prompt", "a", "--tokens", 4)
        self.assertTrue(text.out)
        other = self.adapter_job(8, parts, {"model.lora": {"rank": 4, "alpha": 16}})
        result = self.terrace("run", other, code=INVALID_INPUT)
        self.assertIn("model.lora.alpha from 8 to 16", result.err + result.out)

    def test_plans_count_them(self):
        job = self.job({"model.config": LLAMA, "model.lora": LORA, "train.optimizer.groups": {"*lora_B*": {"lr_scale": 16}}})
        text = self.terrace("plan", job).out
        self.assertRegex(text, r"parameters,\s+of\s+which\s+[\d,]+\s+of\s+adapters\s+are\s+trained")
        self.assertRegex(text, r"model.lora +14 ")
        self.assertRegex(text, r"\*lora_B\* +14 +[\d,]+ +16 ")
        self.assertRegex(text, r"all others +\d+ +[\d,]+ +frozen")
        plan = json.loads(self.terrace("plan", job, "-o", "json").out)["model"]
        self.assertEqual(int(plan["parameters"]) - int(plan["frozen_parameters"]), int(plan["adapter_parameters"]))

    def test_what_was_trained_is_not_left_out(self):
        directory = self.folder / "trained"
        self.train(self.adapter_job(2, directory))
        init = {"model.init": str(self.checkpoint(directory)), "train.steps": 1}
        for name, lora in (("none", None), ("fewer", {"rank": 4, "targets": ["q_proj"]})):
            job = self.adapter_job(1, self.folder / name, {**init, "model.lora": lora})
            result = self.terrace("run", job, code=None)
            self.refused(result, "holds the adapter", "which this job does not have", "terrace ckpt merge")

    def test_weights_that_lose_bits_are_told(self):
        directory = self.folder / "bits"
        bf16 = {"train.precision": "bf16"}
        self.train(self.adapter_job(2, directory, {**bf16, "formats.parameter": "f32"}))
        result = self.train(self.adapter_job(4, directory, bf16))
        logs = "".join(path.read_text() for path in pathlib.Path(result.done["logs"]).glob("**/rank.log"))
        self.assertRegex(logs, r"the weights of \d+ frozen tensors in .* have more bits than formats.parameter gives them")
        weights = tensors_of(self.checkpoint(directory) / "model.safetensors")
        self.assertEqual(weights["model.layers.0.self_attn.q_proj.weight"][0], "BF16")

    def test_groups_say_what_they_train(self):
        job = self.job({"model.config": LLAMA, "model.lora": LORA, "train.optimizer.groups": {"*norm*": {"weight_decay": 0}}})
        self.refused(self.terrace("plan", job, code=INVALID_INPUT), "*norm*", "a group without frozen", "frozen: false")
        job = self.job({"model.config": LLAMA, "model.lora": LORA,
                        "train.optimizer.groups": {"*norm*": {"weight_decay": 0, "frozen": False}}})
        plan = json.loads(self.terrace("plan", job, "-o", "json").out)["model"]
        trained = int(plan["parameters"]) - int(plan["frozen_parameters"])
        self.assertEqual(trained - int(plan["adapter_parameters"]), (2 * LLAMA["num_hidden_layers"] + 1) * LLAMA["hidden_size"])

    def test_what_makes_no_sense_is_refused(self):
        for lora, words in (({"rank": 4, "targets": ["q_prj"]}, ("model.lora.targets", "'q_prj'", "name a linear layer", "q_proj")),
                            ({"rank": 4000}, ("model.lora.rank", "4000", "at most", "q_proj.weight")),
                            ({"alpha": 8}, ("model.lora.alpha", "accompanied by model.lora.rank")),
                            ({"rank": 4, "alpha": 0}, ("model.lora.alpha", "0")),
                            ({"rank": 4, "dropout": 1.5}, ("model.lora.dropout", "0.99")),
                            ({"rank": 4, "init": "pissa"}, ("model.lora.init is not default or gaussian", "/pissa")),
                            ({"rank": 4, "targets": [{"a": 1}]}, ("model.lora.targets",)),
                            ({"rank": 4, "targets": []}, ("model.lora.targets",))):
            with self.subTest(str(lora)):
                job = self.job({"model.config": LLAMA, "model.lora": lora})
                self.refused(self.terrace("plan", job, code=INVALID_INPUT), *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
