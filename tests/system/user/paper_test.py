#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user does before there is a cluster: estimate a model, import another tool's configuration, plan the result."""
import json
import subprocess
import tempfile
import pathlib
import unittest

from support import BIN

DEEPSPEED = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
             "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}, "nvme_offload": True},
             "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}}


def terrace(*arguments):
    return subprocess.run([BIN / "terrace", *map(str, arguments)], capture_output=True, text=True, timeout=120)


class PaperTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "corpus.txt").write_text("the king gave bread to the shepherd. " * 5000)

    def test_an_imported_configuration_is_planned_as_it_is(self):
        path = self.folder / "ds_config.json"
        path.write_text(json.dumps(DEEPSPEED))
        result = terrace("import", "deepspeed", path, "--model", "gpt-bytes-10m", "--train", self.folder / "corpus.txt",
                         "--sequence-length", 128, "--steps", 10, "--devices-per-node", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("nvme_offload", result.stderr)
        self.assertIn("unknown", result.stderr)
        spec = self.folder / "job.yaml"
        spec.write_text(result.stdout)
        plan = terrace("plan", spec, "-o", "json")
        self.assertEqual(plan.returncode, 0, plan.stdout + plan.stderr)
        layout = json.loads(plan.stdout)["layout"]
        self.assertEqual((layout["zero_stage"] if "zero_stage" in layout else layout["zero"], layout["micro_batch"]), (2, 2))

    def test_megatron_flags_are_imported_from_quotes(self):
        result = terrace("import", "--from", "megatron", "--tensor-model-parallel-size 2 --micro-batch-size 1 --bf16",
                         "--model", "gpt2", "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        imported = json.loads(result.stdout)
        self.assertTrue(imported["valid"], imported["problems"])
        self.assertIn("tp: 2", imported["spec_yaml"])

    def test_bad_input_is_refused_with_a_way_out(self):
        for arguments, code, words in [
                (("import", "deepspeed", self.folder / "none.json"), 3, "none.json"),
                (("import", "megatron"), 2, "deepspeed ds_config.json"),
                (("import", "megatron", "words"), 3, "words"),
                (("estimate", "lama-2-7b"), 3, "llama-2-7b"),
                (("estimate", "gpt2", "--devices", "0"), 2, "devices")]:
            result = terrace(*arguments)
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)
            self.assertIn(words, result.stderr + result.stdout)

    def test_estimates_count_parameters_exactly(self):
        estimate = json.loads(terrace("estimate", "qwen2.5-7b", "--devices", 8, "-o", "json").stdout)
        self.assertEqual(estimate["model"]["parameters"], 7615616512)
        bytes_of = {case["name"]: case["device_bytes"] for case in estimate["training"]["cases"]}
        self.assertEqual(bytes_of["no sharding"], 16 * 7615616512)
        self.assertEqual(bytes_of["ZeRO 3"], 2 * 7615616512)


if __name__ == "__main__":
    unittest.main()
