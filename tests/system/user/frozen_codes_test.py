#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frozen weights that rest in blocks (`formats.frozen`): the same codes on every layout, every bit after a resume, converted where a
job wants others, decoded by an export, and counted by plans."""
import json
import pathlib
import struct
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest

MODEL = {**LLAMA, "hidden_size": 64, "intermediate_size": 128}
GROUPS = {"model.layers.*": {"frozen": True}, "*norm*": {"frozen": False}}
CODES = "model.layers.1.mlp.down_proj.weight"
SCALES = CODES + ".scales"


def header_of(file):
    content = file.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length]), content[8 + length:]


def tensors_of(file):
    """Type, shape and bytes of each tensor by name."""
    header, data = header_of(file)
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}


class FrozenCodesTest(TerraceTest):
    def codes_job(self, directory, changes=None):
        return self.job({"model.config": MODEL, "train.schedule": {"name": "constant"}, "train.optimizer.groups": GROUPS,
                         "formats.frozen": "nf4", "train.steps": 2, "checkpoint.directory": str(directory), **(changes or {})})

    def model_of(self, directory):
        return sorted(directory.glob("step-*"))[-1] / "model.safetensors"

    def logs_of(self, result):
        return "".join(path.read_text() for path in sorted(pathlib.Path(result.done["logs"]).glob("**/rank.log")))

    def test_codes_are_the_same_on_every_layout_and_stay(self):
        two = {"resources.devices_per_node": 2}
        bf16 = {"train.precision": "bf16", "formats.parameter": "bf16"}
        host = {"layout.offload": {"optimizer": "host", "parameter": "host"}, "resources.host_memory": "256MiB"}
        first = None
        for name, changes in (("alone", {}), ("bf16", bf16), ("zero1", {**two, "layout.dp": 2, "layout.zero": 1}),
                              ("zero3", {**two, **bf16, "layout.dp": 2, "layout.zero": 3}), ("stages", {**two, "layout.pp": 2}),
                              ("host", {**bf16, **host})):
            with self.subTest(name):
                directory = self.folder / name
                self.train(self.codes_job(directory, changes))
                before = tensors_of(self.model_of(directory))
                self.assertEqual(before[CODES][:2], ("U8", [64, 64]))
                self.assertEqual(before[SCALES][:2], ("F32", [64, 2]))
                self.train(self.codes_job(directory, {**changes, "train.steps": 4}))
                after = tensors_of(self.model_of(directory))
                frozen = {tensor for tensor in after if tensor + ".scales" in after or tensor.endswith(".scales")}
                self.assertEqual(len(frozen), 2 * 2 * 7)
                first = first or before
                for tensor in frozen:
                    self.assertEqual(after[tensor], before[tensor], tensor)
                    self.assertEqual(after[tensor], first[tensor], tensor)
                self.assertNotEqual(after["model.norm.weight"], before["model.norm.weight"])

    def test_a_resume_has_every_bit(self):
        whole = self.train(self.codes_job(self.folder / "whole", {"train.steps": 6}))
        self.train(self.codes_job(self.folder / "parts", {"train.steps": 3}))
        rest = self.train(self.codes_job(self.folder / "parts", {"train.steps": 6}))
        self.assertEqual(rest.losses, {step: loss for step, loss in whole.losses.items() if step in rest.losses})
        self.assertEqual(tensors_of(self.model_of(self.folder / "parts")), tensors_of(self.model_of(self.folder / "whole")))

    def test_other_blocks_are_converted_and_said(self):
        directory = self.folder / "changed"
        self.train(self.codes_job(directory))
        result = self.train(self.codes_job(directory, {"train.steps": 4, "formats.frozen": "int8"}))
        self.assertRegex(self.logs_of(result), r"frozen weights in .* are in nf4 blocks of 64 and were converted to int8_linear blocks of 64")
        self.assertEqual(tensors_of(self.model_of(directory))[CODES][:2], ("U8", [64, 128]))
        # Other blocks where ranks cut rows.
        tensor = {"layout.tp": 2, "resources.devices_per_node": 2, "train.steps": 6, "formats.frozen": "int8"}
        result = self.train(self.codes_job(directory, tensor))
        self.assertRegex(self.logs_of(result), r"int8_linear blocks of 64 and were converted to int8_linear blocks of 32")

    def test_an_export_decodes_and_can_be_begun_with(self):
        trained = self.train(self.codes_job(self.folder / "run"))
        checkpoint = pathlib.Path(trained.done["checkpoint"])
        self.terrace("ckpt", "export", checkpoint, "--output", self.folder / "out", "--dtype", "f32")
        exported = tensors_of(self.folder / "out" / "model.safetensors")
        self.assertEqual({entry[0] for entry in exported.values()}, {"F32"})
        self.assertEqual(exported[CODES][1], [64, 128])
        self.assertNotIn(SCALES, exported)
        codes, scales = tensors_of(checkpoint / "model.safetensors")[CODES][2], tensors_of(checkpoint / "model.safetensors")[SCALES][2]
        numbers = struct.unpack("<128f", exported[CODES][2][:512])
        scale = struct.unpack("<2f", scales[:8])
        nf4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
               -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
               0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
        for i, number in enumerate(numbers):
            self.assertAlmostEqual(number, nf4[codes[i // 2] >> i % 2 * 4 & 15] * scale[i // 64], delta=1e-8)
        # nf4's largest number is its scale: encoding again gives the same codes.
        again = self.train(self.codes_job(self.folder / "again", {"model.init": str(self.folder / "out")}))
        begun = tensors_of(pathlib.Path(again.done["checkpoint"]) / "model.safetensors")
        self.assertEqual((begun[CODES], begun[SCALES]), (tensors_of(checkpoint / "model.safetensors")[CODES],
                                                        tensors_of(checkpoint / "model.safetensors")[SCALES]))
        self.assertTrue(self.terrace("generate", checkpoint, "--prompt", "the king", "--tokens", "8").out)

    def test_adapters_train_beside_it_and_are_merged(self):
        changes = {"train.optimizer.groups": {}, "model.lora": {"rank": 4}, "train.precision": "bf16", "formats.parameter": "bf16"}
        trained = self.train(self.codes_job(self.folder / "adapted", {**changes, "train.steps": 4}))
        checkpoint = pathlib.Path(trained.done["checkpoint"])
        tensors = tensors_of(checkpoint / "model.safetensors")
        self.assertEqual((tensors[CODES][0], tensors[CODES.replace("weight", "lora_A.weight")][0]), ("U8", "F32"))
        self.terrace("ckpt", "merge", checkpoint, "--output", self.folder / "merged", "--dtype", "f32")
        merged = tensors_of(self.folder / "merged" / "model.safetensors")
        self.assertEqual(merged[CODES][:2], ("F32", [64, 128]))
        self.assertFalse([name for name in merged if "lora" in name or name.endswith(".scales")])

    def test_plans_count_it(self):
        def weights(changes):
            plan = json.loads(self.terrace("plan", self.codes_job(self.folder / "plan", changes), "-o", "json").out)
            return sum(int(line["bytes"]) for line in plan["memory"][0]["lines"] if line["class"] == "PARAMETER")
        text = self.terrace("plan", self.codes_job(self.folder / "plan")).out
        self.assertRegex(text, r"frozen\s+weights\s+in\s+nf4")
        self.assertLess(weights({}), weights({"formats.frozen": "int8"}))

    def test_what_makes_no_sense_is_refused(self):
        for changes, words in (({"train.optimizer.groups": {}}, ("accompanied by model.lora or train.optimizer.groups",)),
                               ({"formats.frozen": "int4"}, ("must be one of nf4, int8, fp8",)),
                               ({"model.config": {**MODEL, "intermediate_size": 72}}, ("blocks of at most 8 elements", "leave it out"))):
            with self.subTest(str(changes)):
                self.refused(self.terrace("plan", self.codes_job(self.folder / "bad", changes), code=INVALID_INPUT), "formats.frozen", *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
