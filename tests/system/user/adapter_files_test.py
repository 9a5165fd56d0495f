#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters as files: one that PEFT saved is gone on from, written again and merged, against what PEFT computed with it
(tests/golden/pytorch/make_adapters.py); what is not trained here, or belongs to another model, is refused."""
import array
import json
import shutil
import struct
import unittest

from frozen_test import tensors_of
from support import INVALID_INPUT, ROOT, TerraceTest

GOLDENS = ROOT / "tests/golden/pytorch"
LENGTH = 24


def integers(tensor):
    return struct.unpack(f"<{len(tensor[1]) // 4}i", tensor[1])


def floats(tensor):
    return struct.unpack(f"<{len(tensor[1]) // 4}f", tensor[1])


class AdapterFilesTest(TerraceTest):
    def setUp(self):
        super().setUp()
        self.batches = {family: tensors_of(GOLDENS / family / "batch.safetensors") for family in ("gpt2", "llama")}
        self.write("train.bin", array.array("H", integers(self.batches["llama"]["tokens"]) * 8).tobytes())

    def row(self, family, row):
        """A file of one validation sequence: the tokens of a row of the goldens' batch and the last target."""
        tokens, targets = (integers(self.batches[family][name])[row * LENGTH:(row + 1) * LENGTH] for name in ("tokens", "targets"))
        return self.write(f"{family}-{row}.bin", array.array("H", [*tokens, targets[-1]]).tobytes())

    def adapter_job(self, family, changes=None, row=0):
        """One step that changes nothing, and an evaluation."""
        golden = GOLDENS / family
        return self.job({"model": {"config": str(golden / "config.json"), "init": str(golden), "lora": {"init": str(golden / "adapter")}},
                         "data.train": "../train.bin", "data.validation": str(self.row(family, row)), "data.sequence_length": LENGTH,
                         "train.steps": 1, "train.global_batch": 2, "train.optimizer": {"lr": 0}, **(changes or {})})

    def loss(self, job):
        result = self.train(job)
        return result.events("eval")[-1]["loss"], result.done["checkpoint"]

    def copy_of_adapter(self, family, **changes):
        folder = self.folder / f"adapter-{self.jobs}"
        shutil.copytree(GOLDENS / family / "adapter", folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))
        return folder

    def test_dropout_of_an_adapter_goes_in_and_out(self):
        folder = self.copy_of_adapter("llama", lora_dropout=0.05)
        for name, lora, expected in (("as saved", {}, 0.05), ("off", {"dropout": 0}, 0.0), ("more", {"dropout": 0.25}, 0.25)):
            with self.subTest(name):
                job = self.adapter_job("llama", {"model.lora": {"init": str(folder), **lora}})
                out = self.folder / f"out-{name.replace(' ', '-')}"
                self.terrace("ckpt", "export", self.train(job).done["checkpoint"], "--output", out, "--adapter")
                self.assertEqual(json.loads((out / "adapter_config.json").read_text())["lora_dropout"], expected)

    def test_an_adapter_of_peft_goes_in_and_out(self):
        for family in ("gpt2", "llama"):
            golden = GOLDENS / family
            expected = tensors_of(golden / "adapter/expected.safetensors")
            for row, theirs in enumerate(floats(expected["losses"])):
                with self.subTest(family=family, row=row):
                    ours, checkpoint = self.loss(self.adapter_job(family, row=row))
                    self.assertLess(abs(ours - theirs), 1e-5 * theirs)
            with self.subTest(family=family, what="out"):
                out = self.folder / f"{family}-out"
                exported = self.terrace("ckpt", "export", checkpoint, "--output", out, "--adapter", "-o", "json").json()
                self.assertTrue(exported["adapter"])
                self.assertEqual(tensors_of(out / "adapter_model.safetensors"), tensors_of(golden / "adapter/adapter_model.safetensors"))
                ours, theirs = (json.loads((folder / "adapter_config.json").read_text()) for folder in (out, golden / "adapter"))
                self.assertEqual(ours.pop("base_model_name_or_path"), str(golden))
                self.assertEqual(ours, {key: theirs[key] for key in ours})
            with self.subTest(family=family, what="merged"):
                self.check_merged(family, checkpoint, expected)

    def check_merged(self, family, checkpoint, expected):
        merged = self.folder / f"{family}-merged"
        told = self.terrace("ckpt", "merge", checkpoint, "--output", merged, "-o", "json").json()
        changed = {name.removeprefix("merged."): tensor for name, tensor in expected.items() if name.startswith("merged.")}
        self.assertEqual((int(told["matrices"]), told["rounding_ratio"], int(told["undone"])), (len(changed), 0, 0))
        for name, (dtype, content) in tensors_of(merged / "model.safetensors").items():
            base = tensors_of(GOLDENS / family / "model.safetensors")[name]
            for ours, theirs in zip(floats((dtype, content)), floats(changed.get(name, base)), strict=True):
                self.assertAlmostEqual(ours, theirs, delta=5e-7 if name in changed else 0)
        # A model like any other.
        loss, _ = self.loss(self.adapter_job(family, {"model": {"config": str(merged / "config.json"), "init": str(merged)}}))
        self.assertLess(abs(loss - floats(expected["losses"])[0]), 1e-5 * loss)
        half = self.folder / f"{family}-half"
        text = self.terrace("ckpt", "merge", checkpoint, "--output", half, "--dtype", "bf16").out
        self.assertRegex(text, rf"rounding to bf16: [\d.]+ % of what the adapter adds to {len(changed)} matrices")
        refused = self.terrace("ckpt", "export", checkpoint, "--output", self.folder / "plain", code=INVALID_INPUT)
        self.refused(refused, "holds an adapter", "--adapter", "terrace ckpt merge")

    def test_an_adapter_is_gone_on_from_on_other_layouts(self):
        alone = self.train(self.adapter_job("llama", {"train.steps": 4, "train.optimizer": {"lr": 1e-2}}))
        for changes in ({"layout.tp": 2}, {"layout.pp": 2}, {"layout.dp": 2, "layout.zero": 3}):
            with self.subTest(str(changes)):
                result = self.train(self.adapter_job("llama", {"train.steps": 4, "train.optimizer": {"lr": 1e-2},
                                                               "resources.devices_per_node": 2, **changes}))
                for step, loss in alone.losses.items():
                    self.assertAlmostEqual(float(result.losses[step]), float(loss), delta=1e-5 * float(loss))

    def test_the_end_of_a_run_says_how_the_adapter_comes_out(self):
        out = self.terrace("run", self.adapter_job("llama")).out
        self.assertRegex(out, r"terrace ckpt export \S+ --output adapter --adapter")
        self.assertRegex(out, r"terrace ckpt merge \S+ --output merged")

    def test_what_is_not_trained_here_is_refused(self):
        cases = [({"use_dora": True}, ("use_dora: got true", "DoRA")),
                 ({"lora_dropout": 1, "bias": "all"}, ("lora_dropout: got 1", "bias: got \"all\"")),
                 ({"modules_to_save": ["lm_head"]}, ("modules_to_save",)),
                 ({"rank_pattern": {"q_proj": 2}}, ("rank_pattern",)),
                 ({"target_modules": ["c_attn"]}, ("c_attn", "linear layer")),
                 ({"r": 4000}, ("4000", "at most"))]
        for changes, words in cases:
            with self.subTest(str(changes)):
                folder = self.copy_of_adapter("llama", **changes)
                job = self.adapter_job("llama", {"model.lora": {"init": str(folder)}})
                self.refused(self.terrace("plan", job, code=INVALID_INPUT), "model.lora", *words)

    def test_an_adapter_of_another_model_is_refused_with_its_shapes(self):
        cases = [({"target_modules": ["q_proj", "v_proj"]}, ("adapter of another model", "mlp.down_proj.lora_A.weight [3, 48]")),
                 ({"r": 2}, ("adapter of another model", "[3, 32]", "[2, 32]")),
                 ({"target_modules": ["q_proj", "v_proj", "down_proj", "o_proj"]}, ("lacks", "o_proj.lora_A.weight"))]
        for changes, words in cases:
            with self.subTest(str(changes)):
                folder = self.copy_of_adapter("llama", **changes)
                job = self.adapter_job("llama", {"model.lora": {"init": str(folder)}})
                self.refused(self.terrace("run", job, code=INVALID_INPUT), "model.lora.init", *words)

    def test_the_folder_says_rank_and_targets_and_needs_its_model(self):
        adapter = str(GOLDENS / "llama/adapter")
        for changes, words in (({"model.lora": {"init": adapter, "rank": 3}}, ("model.lora.rank", "left out", "adapter_config.json")),
                               ({"model.lora": {"init": adapter, "targets": ["q_proj"]}}, ("model.lora.targets", "left out")),
                               ({"model.init": "random"}, ("model.init", "random", "weights")),
                               ({"model.lora": {"init": str(self.folder)}}, ("model.lora.init", "adapter_config.json", "save_pretrained")),
                               ({"model.lora": {"init": "pissa", "rank": 4}}, ("model.lora.init", "pissa"))):
            with self.subTest(str(changes)):
                self.refused(self.terrace("plan", self.adapter_job("llama", changes), code=INVALID_INPUT), *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
