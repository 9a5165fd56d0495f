#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose samples are documents of different lengths: steps are as long as their documents, padding counts nowhere, and
interrupted or spread over ranks a job sees the same samples."""
import json
import random
import signal
import unittest

from offload_run_test import HOST, NVME, state_of
from support import GPT, TerraceTest, learnable_text

STEPS = 120
LONGEST = 128


def documents(seed=5, most=LONGEST):
    """Lines of skewed length: many short, few long."""
    text, source, at = [], learnable_text(40_000), 0
    draw = random.Random(seed)
    for _ in range(240):
        length = min(most, 4 + int(draw.expovariate(1 / 20)))
        text.append(source[at:at + length])
        at += length
    return text


class BucketsTest(TerraceTest):
    def documents_job(self, changes=None, texts=None):
        texts = texts or documents()
        self.write("documents.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        return self.job({"model.config": {**GPT, "n_positions": LONGEST}, "data.train": "../documents.jsonl",
                         "data.sequence_length": LONGEST, "data.samples": "documents",
                         "data.buckets": [16, 32, LONGEST], "train.steps": STEPS, "checkpoint.every_steps": 40,
                         "checkpoint.keep": 0, **(changes or {})})

    def tokens_by_step(self, result):
        tokens = {event["step"]: event["tokens"] for event in result.events("step")}
        return {step: tokens[step] - tokens.get(step - 1, 0) for step in sorted(tokens)}

    def test_short_documents_make_short_steps_and_padding_is_no_token(self):
        job = self.documents_job()
        result = self.train(job)
        self.assertEqual(sorted(result.losses), list(range(1, STEPS + 1)))
        self.assertLess(float(result.losses[STEPS]), 0.8 * float(result.losses[1]), "it learns")
        tokens = self.tokens_by_step(result)
        # Eight documents of a bucket: up to 15 targets each, up to 31, more.
        seconds = {bucket: [] for bucket in (16, 32, LONGEST)}
        for event in result.events("step"):
            count = tokens[event["step"]]
            self.assertAlmostEqual(event["tokens_per_second"] * event["step_seconds"], count, delta=0.01 * count)
            bucket = 16 if count <= 8 * 16 else 32 if count <= 8 * 32 else LONGEST
            seconds[bucket].append(event["step_seconds"])
        median = {bucket: sorted(times)[len(times) // 2] for bucket, times in seconds.items()}
        self.assertTrue(all(len(times) > 5 for times in seconds.values()), seconds)
        self.assertLess(median[16], 0.6 * median[LONGEST], "short steps are short")
        # What was trained on by the end: all documents about equally often, one target fewer than tokens each.
        per_pass = sum(len(text) - 1 for text in documents()) * 0.95
        self.assertAlmostEqual(sum(tokens.values()) / (STEPS * 8 / 240 * per_pass), 1, delta=0.1)

    def test_killed_job_resumes_bitwise(self):
        self.expect_bits_after_a_kill({})

    def test_killed_amid_updates_at_once_it_resumes_bitwise(self):
        """Then some weights on the drive are a step ahead of others."""
        self.expect_bits_after_a_kill({"train.clip_grad_norm": 0, "resources.host_memory": "256MiB",
                                       "resources.nvme": {"paths": [str(self.folder)]},
                                       "layout": {"schedule": "breadth_first", "micro_batch": 2, "offload": NVME}})

    def expect_bits_after_a_kill(self, changes):
        changes = {"train.steps": 4 * STEPS, **changes}  # a fast machine is not done when the command is killed
        job, other = self.documents_job(changes), self.documents_job(changes)
        running = self.start("run", job, "-o", "json")
        running.wait_for_step(60)
        running.signal(signal.SIGKILL)
        first = running.wait()
        self.assertEqual(self.wait_until_nothing_runs(5), {})
        second = self.train(job)
        self.assertGreater(min(second.losses), 40, "it went on from a checkpoint")
        expected = self.train(other)
        # The ranks end a moment after the command that was killed: it cannot tell what they train then.
        told = {**first.losses, **second.losses}
        untold = {step for step in expected.losses if max(first.losses) < step < min(second.losses)}
        self.assertEqual(told, {step: loss for step, loss in expected.losses.items() if step not in untold})
        tokens = {event["step"]: event["tokens"] for event in expected.events("step")}
        for event in second.events("step"):
            self.assertEqual(event["tokens"], tokens[event["step"]])
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual((self.checkpoints(job)[-1] / name).read_bytes(), (self.checkpoints(other)[-1] / name).read_bytes())

    def test_two_ranks_see_the_samples_of_one(self):
        changes = {"train.steps": 25, "train.clip_grad_norm": 0}
        one = self.train(self.documents_job(changes))
        for layout in ({"dp": 2}, {"dp": 2, "zero": 3, "micro_batch": 1}, {"pp": 2, "micro_batch": 2}):
            with self.subTest(**layout):
                two = self.train(self.documents_job({**changes, "layout": layout, "resources.devices_per_node": 2}))
                self.assertEqual(self.tokens_by_step(one), self.tokens_by_step(two))
                for step, loss in one.losses.items():
                    self.assertAlmostEqual(float(two.losses[step]), float(loss), delta=2e-4 * float(loss))

    def test_a_bucket_trains_like_a_job_of_that_length(self):
        """With documents that all fit the shorter bucket nothing else runs: bit by bit what it would be alone."""
        short = documents(most=33)
        bucketed = self.train(self.documents_job({"data.buckets": [32, LONGEST], "train.steps": 30}, short))
        alone = self.train(self.documents_job({"data.buckets": None, "data.sequence_length": 32, "train.steps": 30}, short))
        self.assertEqual(bucketed.losses, alone.losses)

    def test_tiers_and_allocators_change_no_bit(self):
        """Programs of several lengths share one persistent state, wherever it lives."""
        changes = {"train.steps": 40, "resources.host_memory": "256MiB", "resources.nvme": {"paths": [str(self.folder)]}}
        job = self.documents_job(changes)
        plain = self.train(job)
        self.assertEqual(len({count // 8 <= 16 for count in self.tokens_by_step(plain).values()}), 2, "short and long steps")
        state = state_of(self.checkpoints(job)[-1])
        for layout in ({"offload": HOST}, {"offload": NVME}, {"offload": {"optimizer": {"host": 0.5, "nvme": 0.5}}, "recompute": "full"},
                       {"allocator": "caching"}, {"allocator": "expandable"}, {"allocator": "caching", "offload": HOST}):
            with self.subTest(**layout):
                other = self.documents_job({**changes, "layout": layout})
                self.assertEqual(self.train(other).losses, plain.losses)
                self.assertEqual(state_of(self.checkpoints(other)[-1]), state)

    def test_updates_at_once_change_no_bit(self):
        """A layer is updated when its backward pass ends, in steps of every length. Without it no gradient reaches the norm."""
        runs = {"schedule": "breadth_first", "micro_batch": 2}
        two = {"resources.devices_per_node": 2}
        for layout, more in (({}, {}), (runs, {}), ({**runs, "offload": NVME, "recompute": "block"}, {}),
                             ({**runs, "offload": HOST, "allocator": "caching"}, {}), ({**runs, "dp": 2, "zero": 3, "micro_batch": 1}, two),
                             ({**runs, "pp": 2}, two)):
            with self.subTest(**layout):
                changes = {"train.steps": 40, "layout": layout, "resources.host_memory": "256MiB",
                           "resources.nvme": {"paths": [str(self.folder)]}, **more}
                at_end = self.documents_job({**changes, "train.clip_grad_norm": 1e9})
                at_once = self.documents_job({**changes, "train.clip_grad_norm": 0})
                expected, result = self.train(at_end), self.train(at_once)
                self.assertEqual(len({count // 8 <= 16 for count in self.tokens_by_step(result).values()}), 2, "short and long steps")
                self.assertEqual(result.losses, expected.losses)
                norms = [[event["grad_norm"] for event in run.events("step")] for run in (result, expected)]
                self.assertEqual(norms[0], norms[1])
                self.assertEqual(state_of(self.checkpoints(at_once)[-1]), state_of(self.checkpoints(at_end)[-1]))

    def test_the_plan_names_the_step_of_each_length(self):
        result = self.terrace("plan", self.documents_job())
        self.assertRegex(" ".join(result.out.split()), r"steps by tokens of a sample: 16 \S+ s, 32 \S+ s, 128 \S+ s; \S+ s on average")

    def test_wrong_lengths_and_too_few_documents_are_refused(self):
        result = self.terrace("plan", self.documents_job({"data.buckets": [32, 16, LONGEST]}), code=None)
        self.refused(result, "line ", "column ", "data.buckets: got [32, 16, 128], must be ascending")
        result = self.terrace("plan", self.documents_job({"data.buckets": [16, 32]}), code=None)
        self.refused(result, "ends with data.sequence_length 128")
        few = self.documents_job({"data.validation_fraction": 0.3}, documents()[:9])
        result = self.terrace("run", few, "-o", "json", code=None)
        self.assertNotEqual(result.code, 0)
        self.refused(result, "data.train has", "must be at least train.global_batch 8", "add documents")


if __name__ == "__main__":
    unittest.main(verbosity=2)
