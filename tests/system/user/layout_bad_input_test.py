#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layouts that cannot be: refused before anything starts, with the dimension that is in the way and what works instead."""
import unittest

from service import ServiceTest
from support import GPT, INVALID_INPUT, LLAMA, TerraceTest

DEEP = {**GPT, "n_layer": 4}
WIDE = {**LLAMA, "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96, "intermediate_size": 96}

# layout, ranks, further changes, words of the message
CASES = {
    "tp and heads": ({"tp": 8}, 8, {}, ("layout.tp", "got 8", "the 4 heads", "try 4")),
    "tp and the inner size": ({"tp": 4}, 4, {"model.config": {**LLAMA, "intermediate_size": 66}},
                              ("layout.tp", "got 4", "66 inner elements", "try 2")),
    "tp and key-value heads": ({"tp": 2}, 2, {"model.config": WIDE},
                               ("layout.tp", "got 2", "the 3 key-value heads", "try 1 or 3")),
    "sequence parallelism alone": ({"tp": 1, "sequence_parallel": True}, 2, {}, ("layout.sequence_parallel", "layout.tp", "false")),
    "sequence parallelism and tokens": ({"tp": 2, "sequence_parallel": True, "micro_batch": 1}, 2, {"data.sequence_length": 33},
                                        ("layout.sequence_parallel", "33 tokens", "layout.micro_batch", "multiple of 2")),
    "ring attention": ({"cp": 4, "context_type": "ring"}, 4, {"data.sequence_length": 36},
                       ("layout.cp", "got 4", "data.sequence_length 36", "try 3 or 6")),
    "ulysses and heads": ({"cp": 8, "context_type": "ulysses"}, 8, {},
                          ("layout.cp", "got 8", "the 4 heads", "try 4", "layout.context_type ring")),
    "ulysses inside tp": ({"tp": 2, "cp": 4, "context_type": "ulysses"}, 8, {}, ("layout.cp", "the 2 heads", "try 2")),
    "stages and layers": ({"pp": 8}, 8, {}, ("layout.pp", "8 model chunks", "the model has 4", "try 4")),
    "chunks and layers": ({"pp": 4, "schedule": "interleaved", "interleave": 2}, 4, {},
                          ("layout.pp", "interleave 2", "the model has 4", "try 2")),
    "one chunk is not interleaved": ({"pp": 2, "schedule": "interleaved", "interleave": 1}, 2, {}, ("layout.interleave", "at least 2")),
    "chunks without interleaving": ({"pp": 2, "schedule": "1f1b", "interleave": 2}, 2, {}, ("layout.interleave", "got 2", "interleaved")),
    "zbv has two chunks": ({"pp": 2, "schedule": "zbv", "interleave": 3}, 2, {}, ("layout.interleave", "must be 2")),
    "a schedule without stages": ({"schedule": "zb-h1"}, 1, {}, ("layout.schedule", "layout.pp", "1f1b")),
    "stage_layers": ({"pp": 2, "stage_layers": [1, 2]}, 2, {}, ("layout.stage_layers", "[1, 2]", "4 layers", "[2, 2]")),
    "stage_layers and stages": ({"pp": 2, "stage_layers": [2, 1, 1]}, 2, {}, ("layout.stage_layers", "2 numbers", "[2, 2]")),
    "recompute_layers": ({"recompute_layers": ["none", "block"]}, 1, {}, ("layout.recompute_layers", "2 entries", "4 layers")),
    "recompute_every": ({"recompute": "every", "recompute_every": 9}, 1, {}, ("layout.recompute_every", "got 9", "4 layers")),
    "shard_size": ({"dp": 4, "zero": 1, "shard_size": 3}, 4, {}, ("layout.shard_size", "got 3", "the 4 data-parallel ranks", "2 or 4")),
    "shard_size without zero": ({"dp": 4, "shard_size": 2}, 4, {}, ("layout.shard_size", "layout.zero")),
    "communication_dtype": ({"dp": 2, "communication_dtype": "bf16"}, 2, {}, ("formats.reduce", "train.precision fp32", "f32")),
    "zero": ({"dp": 2, "zero": 4}, 2, {}, ("layout.zero", "4", "3")),
    "more ranks than devices": ({"tp": 4, "pp": 2}, 4, {}, ("tp 4 x pp 2", "8 ranks", "at most the 4", "devices_per_node 8")),
    "ranks that do not divide the devices": ({"tp": 2}, 3, {}, ("tp 2", "divide the 3", "devices_per_node")),
    "fewer ranks than devices": ({"dp": 2, "tp": 1, "pp": 1, "cp": 1}, 4, {}, ("dp 2", "4")),
    "a batch that ranks do not share": ({"dp": 2, "tp": 2}, 4, {"train.global_batch": 5}, ("train.global_batch", "5", "2")),
    "a batch that micro-batches do not share": ({"dp": 2, "micro_batch": 3}, 2, {}, ("layout.micro_batch", "3", "4")),
}


class LayoutBadInputTest(TerraceTest):
    def test_what_the_dimensions_do_not_allow(self):
        for name, (layout, ranks, changes, words) in CASES.items():
            with self.subTest(name):
                job = self.job({"model.config": DEEP, "resources.devices_per_node": ranks, "layout": layout, **changes})
                self.refused(self.terrace("plan", job, code=INVALID_INPUT), *words)

    def test_all_that_is_wrong_is_told_at_once_and_run_starts_nothing(self):
        job = self.job({"model.config": DEEP, "resources.devices_per_node": 40,
                        "layout": {"tp": 8, "pp": 5, "recompute_layers": ["block"]}})
        result = self.train(job, code=INVALID_INPUT)
        self.refused(result, "layout.tp", "layout.pp", "layout.recompute_layers")
        self.assertEqual(result.events("plan"), [], "refused before anything was launched")

    def test_a_layout_that_cannot_be_is_refused_before_the_machine_is_measured(self):
        profiles = self.folder / "profiles"
        self.environment["TERRACE_PROFILE_DIR"] = str(profiles)
        for command, layout, words in (("plan", {"tp": 8}, ("layout.tp", "try 4")), ("plan", {"dp": 3}, ("layout.dp", "try 2 or 4")),
                                       ("run", {"pp": 8}, ("layout.pp", "the model has 4"))):
            with self.subTest(command=command, layout=layout):
                job = self.job({"model.config": DEEP, "resources.devices_per_node": 8, "layout": layout})
                self.refused(self.terrace(command, job, code=INVALID_INPUT), *words)
                self.assertEqual(list(profiles.glob("**/*")), [], "measured for nothing")

    def test_words_that_are_no_layout(self):
        for layout, words in (({"schedule": "1f1"}, ("layout.schedule", "1f1b", "zbv")), ({"tensor_parallel": 2}, ("layout.tensor_parallel",)),
                              ({"tp": "two"}, ("layout.tp", "whole number")), ({"tp": 0}, ("layout.tp", "0")),
                              ({"recompute": "some"}, ("layout.recompute", "selective")),
                              ({"context_type": "rings"}, ("layout.context_type", "ring", "ulysses"))):
            with self.subTest(layout=layout):
                job = self.job({"layout": layout})
                self.refused(self.terrace("plan", job, code=INVALID_INPUT), *words, "line")


class TooFewDevicesTest(ServiceTest):
    def test_a_layout_of_more_ranks_than_a_worker_has_waits_and_says_so(self):
        self.start_coordinator()
        self.start_worker("small", devices=2)
        job = self.submit(self.job({"model.config": DEEP, "resources.devices_per_node": 4, "layout": {"tp": 2, "pp": 2}}))
        status = self.wait_for_state(job, "QUEUED")
        self.assertEqual(status["reason"], "REASON_NO_MATCHING_WORKER")
        self.assertRegex(status["message"], r"\b4\b.*\b2\b|\b2\b.*\b4\b")
        self.cli("cancel", job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
