#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`train.optimizer.name: adafactor` and `came`: they learn on every layout that they allow, checkpoints name their states, a job that
goes on has the bits of one that was never stopped, and what they cannot do is refused in a sentence."""
import json
import struct
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest

MODEL = {"train.schedule": {"name": "constant"}, "model.config": {**LLAMA, "hidden_size": 64, "intermediate_size": 128}}
ADAFACTOR = {"name": "adafactor", "lr": 3e-2}
MOMENT = {"name": "adafactor", "lr": 3e-3, "beta1": 0.9, "scale_parameter": False}
CAME = {"name": "came", "lr": 5e-4}
TWO = {"resources.devices_per_node": 2}
MATRIX, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"


def states_of(checkpoint):
    content = (checkpoint / "optimizer.safetensors").read_bytes()
    length, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length])


class FactoredTest(TerraceTest):
    def run_for(self, steps, optimizer, changes, directory=None):
        job = self.job({**MODEL, "train.optimizer": optimizer, "train.steps": steps, **changes,
                        **({"checkpoint.directory": str(directory)} if directory else {})})
        return job, self.train(job)

    def newest(self, directory):
        return sorted(directory.glob("step-*"))[-1]

    def test_they_learn_alike_on_every_layout(self):
        for optimizer in (ADAFACTOR, MOMENT, CAME):
            _, one = self.run_for(40, optimizer, {})
            last = [float(one.losses[step]) for step in range(31, 41)]
            self.assertLess(sum(last) / 10, 2.8, optimizer)
            for changes in ({"layout.dp": 2}, {"layout.pp": 2}, {"layout.cp": 2}, {"layout.dp": 2, "layout.zero": 1}):
                with self.subTest(f"{optimizer} {changes}"):
                    _, result = self.run_for(10, optimizer, {**TWO, **changes})
                    for step in range(1, 11):
                        loss = float(one.losses[step])
                        self.assertAlmostEqual(float(result.losses[step]), loss, delta=2e-4 * loss, msg=f"step {step}")

    def test_a_layout_that_is_left_open_is_one_that_they_allow(self):
        for optimizer in (ADAFACTOR, CAME):
            plan = json.loads(self.terrace("plan", self.job({**MODEL, "train.optimizer": optimizer, **TWO}), "-o", "json").out)["layout"]
            self.assertEqual(int(plan.get("tensor_parallel", 1)), 1)
            self.assertLess(int(plan.get("zero_stage", 0)), 3)

    def test_a_relative_step_needs_no_learning_rate(self):
        job = self.job({"model.config": MODEL["model.config"], "train.optimizer": {"name": "adafactor", "relative_step": True},
                        "train.steps": 5, "train.schedule": None})
        result = self.train(job)
        self.assertEqual(sorted(result.losses), [1, 2, 3, 4, 5])
        self.assertLess(float(result.losses[5]), float(result.losses[1]))

    def test_a_job_that_goes_on_has_the_bits_of_one_that_was_not_stopped(self):
        for name, optimizer, changes in (("adafactor", ADAFACTOR, {}), ("moment", MOMENT, {"train.precision": "bf16", "formats.moments": "bf16"}),
                                         ("came", CAME, {}), ("stages", ADAFACTOR, {**TWO, "layout.pp": 2})):
            with self.subTest(name):
                folders = [self.folder / f"{name}-{part}" for part in ("whole", "parts")]
                _, expected = self.run_for(8, optimizer, changes, folders[0])
                _, first = self.run_for(4, optimizer, changes, folders[1])
                _, then = self.run_for(8, optimizer, changes, folders[1])
                self.assertEqual({**first.losses, **then.losses}, expected.losses)
                whole, parts = (self.newest(folder) for folder in folders)
                for file in ("model.safetensors", "optimizer.safetensors"):
                    self.assertEqual((whole / file).read_bytes(), (parts / file).read_bytes(), file)

    def test_checkpoints_name_states_by_the_rule_and_move_between_layouts(self):
        directory = self.folder / "moves"
        self.run_for(2, ADAFACTOR, {}, directory)
        states = states_of(self.newest(directory))
        self.assertEqual(states["__metadata__"]["optimizer"], "adafactor")
        self.assertEqual(states[f"{MATRIX}.adafactor_row"]["shape"], [64])
        self.assertEqual(states["model.layers.0.mlp.up_proj.weight.adafactor_row"]["shape"], [128])
        self.assertEqual(states["model.layers.0.mlp.up_proj.weight.adafactor_column"]["shape"], [64])
        self.assertIn(f"{NORM}.adafactor_v", states)
        self.assertFalse([name for name in states if name.endswith("adafactor_m") or "adam_" in name])
        _, moved = self.run_for(4, ADAFACTOR, {**TWO, "layout.pp": 2}, directory)
        self.assertEqual(sorted(moved.losses), [3, 4])
        _, back = self.run_for(6, ADAFACTOR, {**TWO, "layout.dp": 2, "layout.zero": 2}, directory)
        self.assertEqual(sorted(back.losses), [5, 6])
        # Another rule cannot go on from these states, and no first moment begins in the middle.
        for optimizer, words in (({"name": "adamw", "lr": 3e-3}, ("holds the optimizer states of adafactor, from which adamw cannot go on",)),
                                 ({**ADAFACTOR, "beta1": 0.9}, ("has no first moment of", "Resume with train.optimizer.beta1 as it was"))):
            job = self.job({**MODEL, "train.steps": 8, "train.optimizer": optimizer, "checkpoint.directory": str(directory)})
            self.refused(self.terrace("run", job, code=None), *words)

    def test_came_keeps_errors_too(self):
        directory = self.folder / "came"
        self.run_for(1, CAME, {}, directory)
        states = states_of(self.newest(directory))
        for name in ("came_m", "came_row", "came_column", "came_error_row", "came_error_column"):
            self.assertIn(f"{MATRIX}.{name}", states)
        self.assertTrue({f"{NORM}.came_m", f"{NORM}.came_v"} <= set(states))

    def test_an_estimate_shows_what_they_save(self):
        text = self.terrace("estimate", "llama-3.2-1b", "--only", "optimizers").out
        self.assertRegex(text, r"adafactor, without beta1")
        self.assertRegex(text, r"came; f32")

    def test_what_cannot_be_is_refused(self):
        for optimizer, changes, words in (
                (ADAFACTOR, {**TWO, "layout.dp": 2, "layout.zero": 3},
                 ("layout.zero: got 3, must be 0, 1 or 2", "updates tensors as a whole; try layout.zero 1")),
                (CAME, {**TWO, "layout.tp": 2}, ("layout.tp: got 2, must be 1", "updates tensors as a whole")),
                (ADAFACTOR, {"layout.offload": {"optimizer": "host"}, "resources.host_memory": "256MiB"},
                 ("layout.offload.optimizer: got host, must be device",)),
                (MOMENT, {"formats.moments": "int8"}, ("formats.moments", "f32 or bf16 with train.optimizer.name adafactor")),
                (ADAFACTOR, {"formats.moments": "bf16"}, ("formats.moments", "adafactor without beta1")),
                ({**CAME, "stochastic_rounding": True}, {"train.precision": "bf16"},
                 ("train.optimizer.stochastic_rounding", "false with train.optimizer.name came")),
                ({**ADAFACTOR, "relative_step": True}, {}, ("train.optimizer.lr", "left out with train.optimizer.relative_step")),
                ({**ADAFACTOR, "beta2_decay": 0.8}, {}, ("train.optimizer.beta2_decay", "from -1 to -0.01")),
                ({"name": "adamw", "clip_threshold": 1}, {}, ("train.optimizer.clip_threshold", "train.optimizer.name adafactor or came"))):
            with self.subTest(words[0]):
                self.refused(self.terrace("plan", self.job({**MODEL, "train.optimizer": optimizer, **changes}), code=INVALID_INPUT), *words)


if __name__ == "__main__":
    unittest.main()
