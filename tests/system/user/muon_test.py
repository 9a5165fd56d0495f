#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`train.optimizer.name: muon`: it learns on every layout that it allows, checkpoints name its moments, a job that goes on has the
bits of one that was never stopped, and what it cannot do is refused in a sentence."""
import json
import struct
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest

MUON = {"train.optimizer": {"name": "muon", "lr": 3e-3}, "train.schedule": {"name": "constant"},
        "model.config": {**LLAMA, "hidden_size": 64, "intermediate_size": 128}}
TWO = {"resources.devices_per_node": 2}


def states_of(checkpoint):
    content = (checkpoint / "optimizer.safetensors").read_bytes()
    length, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + length])


class MuonTest(TerraceTest):
    def run_for(self, steps, changes, directory=None):
        job = self.job({**MUON, "train.steps": steps, **changes, **({"checkpoint.directory": str(directory)} if directory else {})})
        return job, self.train(job)

    def newest(self, directory):
        return sorted(directory.glob("step-*"))[-1]

    def test_it_learns_alike_on_every_layout(self):
        _, one = self.run_for(40, {})
        last = [float(one.losses[step]) for step in range(31, 41)]
        self.assertLess(sum(last) / 10, 2.6)
        for changes in ({"layout.dp": 2}, {"layout.pp": 2}, {"layout.cp": 2}, {"layout.dp": 2, "layout.zero": 1}):
            with self.subTest(str(changes)):
                _, result = self.run_for(40, {**TWO, **changes})
                for step in range(1, 11):
                    loss = float(one.losses[step])
                    self.assertAlmostEqual(float(result.losses[step]), loss, delta=2e-4 * loss, msg=f"step {step}")

    def test_a_layout_that_is_left_open_is_one_that_it_allows(self):
        plan = json.loads(self.terrace("plan", self.job({**MUON, **TWO}), "-o", "json").out)["layout"]
        self.assertEqual(int(plan.get("tensor_parallel", 1)), 1)
        self.assertLess(int(plan.get("zero_stage", 0)), 3)

    def test_a_job_that_goes_on_has_the_bits_of_one_that_was_not_stopped(self):
        for name, changes in (("alone", {}), ("bf16", {"train.precision": "bf16", "formats.moments": "bf16"}),
                              ("stages", {**TWO, "layout.pp": 2})):
            with self.subTest(name):
                folders = [self.folder / f"{name}-{part}" for part in ("whole", "parts")]
                _, expected = self.run_for(8, changes, folders[0])
                _, first = self.run_for(4, changes, folders[1])
                _, then = self.run_for(8, changes, folders[1])
                self.assertEqual({**first.losses, **then.losses}, expected.losses)
                whole, parts = (self.newest(folder) for folder in folders)
                for file in ("model.safetensors", "optimizer.safetensors"):
                    self.assertEqual((whole / file).read_bytes(), (parts / file).read_bytes(), file)

    def test_checkpoints_name_moments_by_the_rule_and_move_between_layouts(self):
        directory = self.folder / "moves"
        self.run_for(2, {}, directory)
        states = states_of(self.newest(directory))
        self.assertEqual(states["__metadata__"]["optimizer"], "muon")
        matrix, norm = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"
        self.assertIn(f"{matrix}.muon_m", states)
        self.assertNotIn(f"{matrix}.adam_v", states)
        self.assertTrue({f"{norm}.adam_m", f"{norm}.adam_v", "model.embed_tokens.weight.adam_v"} <= set(states))
        _, moved = self.run_for(4, {**TWO, "layout.pp": 2}, directory)
        self.assertEqual(sorted(moved.losses), [3, 4])
        # With ZeRO each rank has whole matrices, and the next job has them all again.
        _, shared = self.run_for(6, {**TWO, "layout.dp": 2, "layout.zero": 1}, directory)
        self.assertEqual(sorted(shared.losses), [5, 6])
        self.run_for(7, {}, directory)
        # Another rule cannot go on from these moments: for all tensors, or for one.
        job = self.job({**MUON, "train.steps": 8, "train.optimizer": {"name": "adamw", "lr": 3e-3},
                        "checkpoint.directory": str(directory)})
        self.refused(self.terrace("run", job, code=None), "holds the optimizer states of muon, from which adamw cannot go on")
        groups = {"name": "muon", "lr": 3e-3, "groups": {"*q_proj*": {"rule": "adamw"}, "*k_proj*": {"rule": "adamw"},
                                                         "*v_proj*": {"rule": "adamw"}}}
        job = self.job({**MUON, "train.steps": 8, "train.optimizer": groups, "checkpoint.directory": str(directory)})
        self.refused(self.terrace("run", job, code=None), "q_proj.weight was updated", "Resume with train.optimizer.groups as it was")

    def test_a_plan_says_who_updates_what(self):
        text = self.terrace("plan", self.job({**MUON})).out
        self.assertRegex(text, r"all others +14 .*muon")
        self.assertRegex(text, r"tables, norms and biases .*adamw")
        estimate = self.terrace("estimate", "llama-3.2-1b", "--only", "optimizers").out
        self.assertRegex(estimate, r"muon and adamw; f32")

    def test_a_suite_of_techniques_says_what_muon_cannot_do(self):
        text = self.terrace("evaluate", self.job({**MUON, "train.precision": "bf16"})).out
        self.assertRegex(text, r"bf16 weights: layout.stochastic_rounding: got true")

    def test_a_group_of_two_rules_is_said(self):
        groups = {**MUON["train.optimizer"], "groups": {"*layers.0.*": {"lr_scale": 0.5}}}
        self.assertRegex(self.terrace("plan", self.job({**MUON, "train.optimizer": groups})).out, r"layers.0.* 0.5 .*(muon, adamw|adamw, muon)")

    def test_what_cannot_be_is_refused(self):
        optimizer = MUON["train.optimizer"]
        for changes, words in (
                ({**TWO, "layout.dp": 2, "layout.zero": 3},
                 ("layout.zero: got 3, must be 0, 1 or 2", "updates matrices as a whole; try layout.zero 1")),
                ({**TWO, "layout.dp": 2, "layout.zero": 1, "train.precision": "bf16", "formats.reduce": "int8"},
                 ("formats.reduce: got int8, must be f32 or bf16", "updates matrices as a whole; leave it out")),
                ({**TWO, "layout.tp": 2}, ("layout.tp: got 2, must be 1", "updates matrices as a whole")),
                ({"layout.offload": {"optimizer": "host"}, "resources.host_memory": "256MiB"},
                 ("layout.offload.optimizer: got host, must be device",)),
                ({"formats.moments": "int8"}, ("formats.moments", "f32 or bf16 with train.optimizer.name muon")),
                ({"train.precision": "bf16", "train.optimizer": {**optimizer, "stochastic_rounding": True}},
                 ("train.optimizer.stochastic_rounding", "false with train.optimizer.name muon")),
                ({"train.optimizer": {**optimizer, "ns_steps": 0}}, ("train.optimizer.ns_steps", "from 1 to 100")),
                ({"train.optimizer": {**optimizer, "adjust_lr": "spectral"}}, ("train.optimizer.adjust_lr", "match_rms_adamw, original")),
                ({"train.optimizer": {"name": "adamw", "ns_steps": 5}}, ("train.optimizer.ns_steps", "train.optimizer.name muon")),
                ({"train.optimizer": {**optimizer, "groups": {"*norm*": {"rule": "muon"}}}},
                 ("rule muon for", "matrices of layers alone")),
                ({"train.optimizer": {**optimizer, "groups": {"*": {"rule": "lion"}}}}, (".rule", "adamw or muon")),
                ({"train.optimizer": {"name": "lion", "groups": {"*": {"rule": "adamw"}}}},
                 (".rule", "left out with train.optimizer.name lion"))):
            with self.subTest(words[0]):
                self.refused(self.terrace("plan", self.job({**MUON, **changes}), code=INVALID_INPUT), *words)


if __name__ == "__main__":
    unittest.main()
