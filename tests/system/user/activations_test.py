#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Activations that wait for the backward pass in 8 bits (`formats.activation`): the loss falls as with 16, a plan names the format and
counts its bytes, a job does the same on the host, and what cannot be is refused in a sentence. What is killed goes on to the bit, with
gathers in 8 bits (`formats.gather`), sums in 4 (`formats.reduce`) and precisions by layer too, and a job that goes on with other formats
says so."""
import json
import os
import signal
import unittest

from support import INVALID_INPUT, LLAMA, OK, RESOURCES, TerraceTest

CONSTANT = {"train.schedule": {"name": "constant"}}
DEEP = {"model.config": {**LLAMA, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 8, "head_dim": 32,
                         "max_position_embeddings": 1024},
        "train.precision": "bf16"}

# In which activations are most of the memory.
BATCHES = {**DEEP, "data.sequence_length": 512, "train.global_batch": 8, "layout.micro_batch": 8, "layout.recompute": "none",
           "resources.host_memory": "1MiB"}


class ActivationsTest(TerraceTest):
    def losses(self, changes, steps):
        result = self.train(self.job({**DEEP, **CONSTANT, "train.steps": steps, **changes}))
        return [float(result.losses[step]) for step in range(1, steps + 1)]

    def test_the_loss_falls_as_with_16_bits(self):
        exact = self.losses({}, 80)
        for name in ("fp8", "int8"):
            rough = self.losses({"formats.activation": name}, 80)
            self.assertEqual(rough[0], exact[0], "the forward pass is exact")
            self.assertNotEqual(rough[-1], exact[-1], "nothing was encoded")
            # Later two seeds differ by more than that.
            self.assertLess(abs(sum(rough[10:20]) - sum(exact[10:20])), 0.02 * sum(exact[10:20]), name)
            self.assertLess(sum(rough[-10:]) / 10, 0.3 * exact[0], name)

    def test_codes_on_the_host_train_to_the_same_losses(self):
        here = self.losses({"formats.activation": "fp8", "data.sequence_length": 128}, 6)
        away = self.losses({"formats.activation": "fp8", "data.sequence_length": 128, "layout.offload": {"activation": "host"},
                            "resources.host_memory": "256MiB"}, 6)
        self.assertEqual(away, here)

    def test_a_job_whose_rank_is_killed_goes_on_to_the_bit(self):
        steps = 160  # a fast machine has not done them when the rank is killed
        for formats in ({"formats.activation": "fp8"},
                        {"formats.gather": "int8", "layout": {"zero": 3}, "resources.devices_per_node": 2},
                        {"formats.reduce": "int4", "formats.residual": "bf16", "layout": {"zero": 2, "reduce_block": 2},
                         "resources.devices_per_node": 4},
                        {"train.precision": {"default": "bf16", "layers": {"first 1": "fp32", "lm_head": "fp32"}}}):
            with self.subTest(**formats):
                changes = {**DEEP, "train.steps": steps, "checkpoint.every_steps": 40, "checkpoint.keep": 0, **formats}
                job, other = self.job(changes), self.job(changes)
                running = self.start("run", job, "-o", "json")
                running.wait_for_step(45)
                os.kill(self.rank_pids()[-1], signal.SIGKILL)
                result = running.wait()
                self.assertEqual(result.code, OK, str(result))
                self.assertIn("RECOVERING", [event["state"] for event in result.events("state")])
                expected = self.train(other)
                self.assertEqual(result.losses, {step: expected.losses[step] for step in result.losses})
                self.assertEqual(max(result.losses), steps)
                for name in ("model.safetensors", "optimizer.safetensors"):
                    ended, whole = (self.checkpoints(one)[-1] / name for one in (job, other))
                    self.assertEqual(ended.read_bytes(), whole.read_bytes(), name)

    def test_a_plan_names_the_format_and_counts_its_bytes(self):
        largest = {}
        for name in ("", "fp8", "int8"):
            changes = {**DEEP, "data.sequence_length": 512, "train.global_batch": 8, "layout.micro_batch": 8,
                       **({"formats.activation": name} if name else {})}
            job = self.job(changes)
            plan = json.loads(self.terrace("plan", job, "-o", "json").out)
            memory = plan["memory"]["stages"][0] if "stages" in plan["memory"] else plan["memory"][0]
            largest[name] = sum(int(line["bytes"]) for line in memory["lines"] if line["class"].lower() == "activation")
            text = " ".join(self.terrace("plan", job).out.split())
            self.assertEqual(f"activations in {name}" in text, name != "", text)
        self.assertLess(largest["fp8"], 0.75 * largest[""])
        self.assertEqual(largest["fp8"], largest["int8"])

    def arena_bytes(self, changes):
        """And what is outside of the arena, of one rank."""
        plan = json.loads(self.terrace("plan", self.job({**BATCHES, **changes}), "-o", "json").out)
        memory = plan["memory"]["stages"][0] if "stages" in plan["memory"] else plan["memory"][0]
        return int(memory["arena_bytes"]) + int(memory["external_bytes"])

    def test_a_plan_takes_what_is_allowed_where_nothing_fits_without(self):
        changes = {**BATCHES, "resources.device_memory": self.arena_bytes({"formats.activation": "fp8"})}
        self.refused(self.terrace("plan", self.job(changes), code=RESOURCES), "per rank")
        allowed = {**changes, "formats.allow": {"activation": "fp8", "moments": "bf16"}}
        layout = json.loads(self.terrace("plan", self.job(allowed), "-o", "json").out)["layout"]
        self.assertEqual((layout["activation_format"], layout["moments_format"]), ("fp8", "f32"), "one is enough")

    def test_what_cannot_be_is_refused(self):
        for changes, words in (({"formats.activation": "int4"}, ("formats.activation", "must be one of fp8, int8")),
                               ({"formats.activation": "fp8", "train.precision": "fp32"},
                                ("formats.activation", "left out with train.precision fp32", "try train.precision bf16"))):
            with self.subTest(words[1]):
                self.refused(self.terrace("plan", self.job({**DEEP, **changes}), code=INVALID_INPUT), *words)

    def test_a_job_that_goes_on_with_another_format_says_so(self):
        directory = str(self.folder / "kept")
        self.train(self.job({**DEEP, **CONSTANT, "train.steps": 2, "checkpoint.directory": directory}))
        result = self.train(self.job({**DEEP, **CONSTANT, "train.steps": 3, "checkpoint.directory": directory,
                                      "formats.activation": "fp8"}))
        self.assertIn("formats.activation", result.out + result.err)

    def test_a_job_that_comes_to_another_format_on_other_devices_says_so(self):
        small = self.arena_bytes({"formats.activation": "fp8"})
        changes = {**BATCHES, "formats.allow": {"activation": "fp8"}, "checkpoint.directory": str(self.folder / "chosen")}
        said = []
        for steps, memory in ((1, {}), (2, {"resources.device_memory": small}), (3, {"resources.device_memory": small}), (4, {})):
            result = self.train(self.job({**changes, "train.steps": steps, **memory}))
            said.append(" ".join(event["text"] for event in result.events("warning")))
        self.assertNotIn("formats", said[0])
        self.assertIn("formats.activation from nothing to fp8", said[1])
        self.assertNotIn("formats", said[2])
        self.assertIn("formats.activation from fp8 to nothing", said[3])


if __name__ == "__main__":
    unittest.main()
