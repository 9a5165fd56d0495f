#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dropout: what a gpt2's config.json and the job ask for is dropped in training, the same on every layout and after a restart,
and nothing of it in evaluation; what cannot be dropped is said or refused."""
import json
import unittest

from frozen_test import CONSTANT, tensors_of
from support import INVALID_INPUT, LLAMA, TerraceTest

GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DROPPING = {**GPT2, "embd_pdrop": 0.1, "resid_pdrop": 0.2, "attn_pdrop": 0.15}


class DropoutTest(TerraceTest):
    def job_of(self, config, steps, changes=None):
        return self.job({"model.config": config, **CONSTANT, "train.steps": steps, **(changes or {})})

    def test_every_layout_drops_the_same(self):
        two = {"resources.devices_per_node": 2}
        alone = self.train(self.job_of(DROPPING, 4)).losses
        plain = self.train(self.job_of(GPT2, 4)).losses
        self.assertTrue(all(alone[step] != plain[step] for step in plain))
        for name, changes in (("zero", {**two, "layout.dp": 2, "layout.zero": 3}), ("tensor", {**two, "layout.tp": 2}),
                              ("stages", {**two, "layout.pp": 2}), ("recomputed", {"layout.recompute": "full"}),
                              ("micro-batches", {"layout.micro_batch": 1})):
            with self.subTest(name):
                losses = self.train(self.job_of(DROPPING, 4, changes)).losses
                for step, loss in alone.items():
                    self.assertAlmostEqual(float(losses[step]), float(loss), delta=1e-5 * float(loss))

    def test_a_plan_says_what_is_dropped(self):
        adapters = {"model.config": LLAMA, "model.lora": {"rank": 4, "dropout": 0.3}}
        for job, words in ((self.job_of(DROPPING, 4), "0.1 of the embeddings, 0.2 of what blocks add to the residual stream, 0.15 of attention weights;"),
                           (self.job_of(None, 4, adapters), "drop 0.3 of what adapters read;")):
            remarks = [" ".join(remark.split()) for remark in self.terrace("plan", job, "-o", "json").json()["remarks"]]
            self.assertEqual(len([remark for remark in remarks if words in remark]), 1, remarks)
        self.assertIn("note   dropout: steps of training drop", self.terrace("plan", self.job_of(DROPPING, 4)).out)
        self.assertNotIn("dropout", self.terrace("plan", self.job_of(LLAMA, 4)).out)

    def test_a_job_goes_on_as_if_it_had_not_stopped(self):
        for name, changes in (("config", {"model.config": DROPPING}),
                              ("adapters", {"model.config": LLAMA, "model.lora": {"rank": 4, "dropout": 0.3}})):
            with self.subTest(name):
                folders = [self.folder / f"{name}-{part}" for part in ("whole", "parts")]
                for folder, steps in ((folders[0], 6), (folders[1], 3), (folders[1], 6)):
                    self.train(self.job_of(None, steps, {**changes, "checkpoint.directory": str(folder)}))
                whole, parts = (sorted(folder.glob("step-*"))[-1] for folder in folders)
                for file in ("model.safetensors", "optimizer.safetensors"):
                    self.assertEqual(tensors_of(whole / file), tensors_of(parts / file))
                self.assertTrue(self.terrace("generate", parts, "--prompt", "a", "--tokens", 4).out)

    def test_nothing_is_dropped_in_evaluation(self):
        still = {"train.optimizer": {"lr": 0}, "train.eval_every_steps": 1}
        plain = self.train(self.job_of(GPT2, 2, still))
        dropped = self.train(self.job_of(GPT2, 2, {**still, "model.dropout": {"embedding": 0.5, "residual": 0.5, "attention": 0.5}}))
        self.assertNotEqual(plain.losses, dropped.losses)
        evaluated = [[event["loss"] for event in result.events("eval")] for result in (plain, dropped)]
        self.assertEqual(len(evaluated[0]), 2)
        self.assertEqual(evaluated[0], evaluated[1])

    def test_the_job_counts_before_the_config(self):
        plain = self.train(self.job_of(GPT2, 2)).losses
        off = {"model.dropout": {"embedding": 0, "residual": 0, "attention": 0}}
        self.assertEqual(self.train(self.job_of(DROPPING, 2, off)).losses, plain)

    def test_what_is_not_dropped_is_said_or_refused(self):
        falcon = {"model_type": "falcon", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        plan = self.terrace("plan", self.job_of({**falcon, "attention_dropout": 0.1}, 2), "-o", "json").json()
        self.assertIn("attention_dropout: got 0.1, which transformers does not apply", json.dumps(plan["remarks"]))
        for changes, words in (({"model.dropout.residual": 1}, ("model.dropout.residual: got \"1\"", "0.99")),
                               ({"model.dropout.embedding": -0.5}, ("model.dropout.embedding: got \"-0.5\"",)),
                               ({"model.dropout.attention": 1}, ("model.dropout.attention: got \"1\"", "0.99")),
                               ({"model.lora.dropout": 0.1}, ("model.lora.dropout", "model.lora.rank")),
                               ({"model.config": {**GPT2, "resid_pdrop": 1.0}}, ("resid_pdrop: got 1.0",))):
            with self.subTest(str(changes)):
                job = self.job_of(GPT2, 2, changes)
                self.refused(self.terrace("plan", job, code=INVALID_INPUT), *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
