#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user does before there is a cluster: estimate a model, import another tool's configuration, plan the result."""
import json
import subprocess
import tempfile
import pathlib
import unittest
import xml.etree.ElementTree

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

    def test_an_estimate_and_a_plan_count_the_same_states(self):
        """Of ZeRO: what it estimates is what the plan has, but for gradients of a few layers that are on their way into shards."""
        for stage, gradient in ((1, "f32"), (1, "bf16"), (2, "f32"), (2, "bf16")):
            with self.subTest(f"zero {stage}, gradients {gradient}"):
                spec = self.folder / "job.yaml"
                spec.write_text(json.dumps({
                    "name": "states", "model": {"config": "llama-2-7b"},
                    "data": {"train": str(self.folder / "corpus.txt"), "sequence_length": 2048},
                    "train": {"steps": 10, "global_batch": 32, "precision": "bf16"}, "formats": {"gradient": gradient},
                    "layout": {"dp": 8, "zero": stage, "micro_batch": 1, "recompute": "selective"}}))
                plan = terrace("plan", spec, "--cluster", "h100x8", "-o", "json")
                self.assertEqual(plan.returncode, 0, plan.stdout + plan.stderr)
                planned = json.loads(plan.stdout)["memory"][0]["max_by_class"]
                estimate = terrace("estimate", "llama-2-7b", "--devices", 8, "--gradient", gradient, "--only", "training", "-o", "json")
                self.assertEqual(estimate.returncode, 0, estimate.stderr)
                case, = (case for case in json.loads(estimate.stdout)["training"]["cases"] if case["name"] == f"ZeRO {stage}")
                estimated = {part["what"]: part["bytes"] for part in case["device"]}
                states = planned["parameter"] + planned["optimizer"]
                self.assertAlmostEqual(states / (estimated["weights"] + estimated["optimizer"]), 1, delta=1e-3)
                on_their_way = planned["gradient"] - estimated["gradients"]
                of_layer = 202_383_360 * (4 if gradient == "f32" else 2)
                shards = estimated["gradients"] / 8 if stage == 1 else 0  # both are there when the last pass ends
                self.assertGreaterEqual(on_their_way, -0.001 * estimated["gradients"])
                self.assertLess(on_their_way, 3 * of_layer + shards)

    def test_a_plan_is_a_page_a_picture_and_a_trace(self):
        spec = self.folder / "job.yaml"
        spec.write_text(json.dumps({
            "name": "paper", "model": {"config": "gpt-bytes-10m"},
            "data": {"train": str(self.folder / "corpus.txt"), "sequence_length": 128},
            "train": {"steps": 10, "global_batch": 8, "precision": "bf16"},
            "layout": {"dp": 1, "pp": 2, "zero": 0, "micro_batch": 1, "recompute": "none",
                       "offload": {"optimizer": "host", "gradient": "device"}}}))
        page, picture, trace = (self.folder / name for name in ("report.html", "picture.svg", "plan.json"))
        plan = terrace("plan", spec, "--cluster", "h100x2:1", "-o", "json", "--html", page, "--svg", picture, "--trace", trace)
        self.assertEqual(plan.returncode, 0, plan.stdout + plan.stderr)
        planned = json.loads(plan.stdout)
        drawn = xml.etree.ElementTree.fromstring(picture.read_text())
        self.assertTrue(drawn.tag.endswith("svg"))
        page_text = page.read_text()
        body = xml.etree.ElementTree.fromstring(page_text[page_text.index("<body>"):page_text.index("</html>")])
        words = " ".join(body.itertext())
        for stage in (0, 1):
            for tier in ("device", "host"):
                self.assertIn(f"stage {stage}, {tier}", words)
        for part in ("parameter", "gradient", "optimizer", "activation", "budget"):
            self.assertIn(part, words)
        slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
        self.assertEqual(len(slices), planned["instructions"])
        end = max(event["ts"] + event["dur"] for event in slices) * 1e-6
        self.assertAlmostEqual(end, planned["time"]["step_seconds"], delta=2e-9)

    def test_a_plan_fits_a_terminal_and_its_numbers_agree_with_the_json(self):
        spec = self.folder / "job.yaml"
        spec.write_text(json.dumps({
            "name": "paper", "model": {"config": "gpt2"}, "data": {"train": str(self.folder / "corpus.txt"), "sequence_length": 512},
            "train": {"steps": 10, "global_batch": 16, "precision": "bf16"}, "layout": {"pp": 2, "micro_batch": 2}}))
        text = terrace("plan", spec, "--cluster", "h100x2")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertEqual([line for line in text.stdout.splitlines() if len(line) > 80], [])
        plan = json.loads(terrace("plan", spec, "--cluster", "h100x2", "-o", "json").stdout)
        self.assertEqual((plan["model"]["name"], plan["model"]["family"]), ("gpt2", "gpt2"))
        self.assertEqual(len(plan["memory"]), 2)
        for memory in plan["memory"]:
            total = memory["arena_bytes"] + memory["external_bytes"]
            self.assertEqual(sum(memory["at_peak"].values()), total)
            self.assertIn(f"{total / 2**30:.1f}" if "in GiB" in text.stdout else f"{total / 2**20:.1f}", text.stdout)
            for name, most in memory["max_by_class"].items():
                self.assertGreaterEqual(most, 0 if name == "gaps" else memory["at_peak"].get(name, 0), name)
        for other in plan["alternatives"]:
            self.assertTrue(other["note"], other)
            if other["compiled"]:
                self.assertIn(other["note"].split(" because ")[0], " ".join(text.stdout.split()))

    def test_clusters_that_are_none_are_refused(self):
        spec = self.folder / "job.yaml"
        spec.write_text(json.dumps({
            "name": "paper", "model": {"config": "gpt-bytes-10m"}, "data": {"train": str(self.folder / "corpus.txt"), "sequence_length": 128},
            "train": {"steps": 10, "global_batch": 8}}))
        hostile = self.folder / "cluster.yaml"
        hostile.write_text("device: h100\nnodes: -3\ndevice: h200\nlinks: {node: .nan}\n")
        for cluster, words in [("nosuch", "not in the catalogue"), ("h10x8:2", "did you mean 'h100'"), ("h100x0:1", "from 1 to 64"),
                               ("h100x8:0", "from 1 to 16384"), (self.folder / "none.yaml", "none.yaml"),
                               (hostile, "nodes: got"), (hostile, "the key twice"), (hostile, "links.node: got")]:
            result = terrace("plan", spec, "--cluster", cluster)
            self.assertNotEqual(result.returncode, 0, cluster)
            self.assertIn(words, result.stderr, cluster)

    def test_a_page_that_cannot_be_written_is_said(self):
        spec = self.folder / "job.yaml"
        spec.write_text(json.dumps({
            "name": "paper", "model": {"config": "gpt-bytes-10m"}, "data": {"train": str(self.folder / "corpus.txt"), "sequence_length": 128},
            "train": {"steps": 10, "global_batch": 8}}))
        result = terrace("plan", spec, "--cluster", "h100x1:1", "--html", self.folder / "none" / "report.html")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("none/report.html", result.stderr)
        result = terrace("--coordinator", "127.0.0.1:1", "plan", spec, "--html", self.folder / "report.html")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn("--cluster", result.stderr)

    def test_megatron_flags_are_imported_from_quotes(self):
        result = terrace("import", "--from", "megatron", "--tensor-model-parallel-size 2 --micro-batch-size 1 --bf16",
                         "--model", "gpt2", "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        imported = json.loads(result.stdout)
        self.assertTrue(imported["valid"], imported["problems"])
        self.assertIn("tp: 2", imported["spec_yaml"])

    def test_a_step_of_a_thousand_micro_batches_is_planned_exactly(self):
        flags = ("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --sequence-parallel --num-layers 96 --hidden-size 12288 "
                 "--num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536 "
                 "--train-iters 100 --lr 6.0e-5 --bf16 --vocab-size 51200 --use-distributed-optimizer --recompute-granularity full "
                 "--recompute-method uniform --recompute-num-layers 1 --use-flash-attn")
        imported = terrace("import", "megatron", flags)
        self.assertEqual(imported.returncode, 0, imported.stderr)
        spec = self.folder / "job.yaml"
        spec.write_text(imported.stdout)
        result = terrace("plan", spec, "--cluster", "a100x8:16", "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertEqual((plan["layout"]["tp"], plan["layout"]["pp"], plan["layout"]["gradient_accumulation"]), (8, 16, 1536))
        self.assertTrue(plan["fits"])
        self.assertEqual(len(plan["program_sha256"]), 16)
        # The seconds are those of the whole step.
        tokens = 1536 * 2048
        self.assertAlmostEqual(plan["time"]["tokens_per_second"], tokens / plan["time"]["step_seconds"], delta=1)
        self.assertGreater(plan["time"]["mfu"], 0.25)
        self.assertLess(plan["time"]["mfu"], 0.75)

    def test_an_import_that_is_not_valid_says_so_in_json_too(self):
        path = self.folder / "ds_config.json"
        path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 5}}))
        result = terrace("import", "deepspeed", path, "-o", "json")
        self.assertEqual(result.returncode, 4, result.stderr)
        imported = json.loads(result.stdout)
        self.assertFalse(imported["valid"])
        self.assertIn("layout.zero", imported["problems"][0])

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
        self.assertEqual(bytes_of["no sharding"], 18 * 7615616512)
        self.assertEqual(bytes_of["ZeRO 3"], 18 * 7615616512 // 8)


if __name__ == "__main__":
    unittest.main()
