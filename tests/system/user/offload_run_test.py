#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose states rest on the host or on NVMe: every printed loss and every byte of a checkpoint is that of the same job on
the device, resumed jobs change tiers, killed ranks leave nothing behind, and a model far larger than the device trains."""
import os
import pathlib
import signal
import unittest

from support import GPT, LLAMA, OK, QWEN3, TerraceTest

WIDE = {**LLAMA, "hidden_size": 64, "intermediate_size": 128}
NVME = {"parameter": "nvme", "gradient": "nvme", "optimizer": "nvme"}
# What is smaller than 64 KiB stays on the device.
LARGE_ACTIVATIONS = {"model.config": {**WIDE, "hidden_size": 256}, "data.sequence_length": 64, "layout.recompute": "block"}
HOST = {"parameter": "host", "gradient": "host", "optimizer": "host"}
SHARES = {"optimizer": {"host": 0.5, "nvme": 0.5}, "gradient": "host", "parameter": {"device": 0.5, "host": 0.5}}


def state_of(checkpoint):
    return {name: (checkpoint / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


class OffloadTest(TerraceTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()

    def offloaded(self, offload, changes=None, name=None):
        return self.job({"model.config": WIDE, "train.steps": 8, "layout.offload": offload, "resources.nvme": str(self.nvme),
                         "resources.host_memory": "256MiB", **(changes or {})}, name)

    def assert_same(self, job, other, losses, other_losses):
        self.assertEqual(losses, other_losses)
        self.assertEqual(state_of(self.checkpoints(job)[-1]), state_of(self.checkpoints(other)[-1]))

    def test_tiers_change_no_bit(self):
        for config in (WIDE, {**GPT, "n_embd": 64}, {**QWEN3, "hidden_size": 64}):
            common = {"model.config": config, "layout.micro_batch": 4}
            resident = self.job({"train.steps": 8, **common})
            expected = self.train(resident).losses
            for offload in (HOST, NVME, SHARES, {"optimizer": "host"}):
                with self.subTest(config=config["model_type"], offload=offload):
                    job = self.offloaded(offload, common)
                    self.assert_same(job, resident, self.train(job).losses, expected)
        self.assertEqual(list(self.nvme.iterdir()), [], "nothing is left on the drive")

    def test_threads_do_not_sleep_at_each_barrier(self):
        """Two streams compute. Their threads are more than the cores, for which OpenMP would spin for 100 rounds only."""
        running = self.start("run", self.offloaded(HOST, {"train.steps": 1_000_000}), "-o", "json")
        running.wait_for_step(1)
        rank, = self.rank_pids()
        environment = pathlib.Path(f"/proc/{rank}/environ").read_text().split("\0")
        running.end()
        self.assertIn("GOMP_SPINCOUNT=2000", environment)
        self.assertIn("OMP_WAIT_POLICY=active", environment)

    def test_ranks_that_share_the_states(self):
        for zero, offload in ((1, {"optimizer": "host"}), (3, NVME)):
            with self.subTest(zero=zero):
                common = {"model.config": WIDE, "layout.zero": zero, "layout.dp": 2, "resources.devices_per_node": 2}
                resident = self.job({"train.steps": 8, **common})
                expected = self.train(resident).losses
                job = self.offloaded(offload, common)
                self.assert_same(job, resident, self.train(job).losses, expected)

    def test_a_checkpoint_of_one_tier_is_resumed_on_another(self):
        directory = str(self.folder / "shared")
        common = {"train.schedule": {"name": "constant"}}  # the length of the first run does not matter
        first = self.offloaded(NVME, {"train.steps": 4, "checkpoint.directory": directory, **common})
        losses = self.train(first).losses
        second = self.job({"model.config": WIDE, "train.steps": 8, "checkpoint.directory": directory, **common})
        losses.update(self.train(second).losses)
        whole = self.job({"model.config": WIDE, "train.steps": 8, **common})
        self.assertEqual(losses, self.train(whole).losses)

    def test_a_killed_rank_resumes_to_the_same_bits(self):
        """A rank that dies amid updates at once leaves some weights on the drive a step ahead of others."""
        layers = {"layout.schedule": "breadth_first", "layout.micro_batch": 2}
        at_once = {"train.clip_grad_norm": 0}
        two_ranks = {"layout.zero": 3, "layout.dp": 2, "resources.devices_per_node": 2}
        away = {**NVME, "activation": "host"}
        rounded = {"train.precision": "bf16", "formats.parameter": "bf16"}
        for name, offload, changes in (("1f1b", NVME, {}), ("breadth_first", NVME, layers),
                                       ("breadth_first with activations on the host", away, {**layers, **LARGE_ACTIVATIONS}),
                                       ("updates at once", NVME, at_once), ("both", NVME, {**layers, **at_once}),
                                       ("both on two ranks", NVME, {**layers, **at_once, **two_ranks}),
                                       ("both with weights in bf16", NVME, {**layers, **at_once, **rounded}),
                                       ("weights in bf16 on two ranks", {"optimizer": "host"}, {**two_ranks, **rounded})):
            with self.subTest(name):
                # A fast machine is not done when its ranks are killed.
                steps = 400 if offload.get("optimizer") == "host" else 120
                changes = {"train.steps": steps, "checkpoint.every_steps": 10, **changes}
                job = self.offloaded(offload, changes)
                running = self.start("run", job, "-o", "json")
                running.wait_for_step(25)
                for pid in self.rank_pids():
                    os.kill(pid, signal.SIGKILL)
                result = running.wait()
                self.assertEqual(result.code, OK, str(result))
                recovering = [event["reason"] for event in result.events("state") if event["state"] == "RECOVERING"]
                self.assertEqual(recovering, ["RANK_DIED"])
                other = self.offloaded(HOST, {**changes, "formats.parameter": "f32"})
                self.assert_same(job, other, result.losses, self.train(other).losses)
                self.assertEqual(list(self.nvme.iterdir()), [], "nothing is left on the drive")

    def test_parameters_several_times_the_device(self):
        deep = {**LLAMA, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 24}
        job = self.offloaded(NVME, {"model.config": deep, "train.steps": 3, "train.global_batch": 1, "layout.micro_batch": 1,
                                    "layout.recompute": "block", "layout.chunk_bytes": "1MiB", "resources.device_memory": "120MiB",
                                    "resources.host_memory": "32MiB"})
        plan = self.terrace("plan", job, "-o", "json").json()
        tiers = {line["tier"]: line for line in plan["memory"]}
        arena = int(tiers["DEVICE"]["arena_bytes"])
        self.assertGreater(4 * int(plan["model"]["parameters"]), 4 * arena, "the parameters alone are 4 times the device's arena")
        running = self.start("run", job, "-o", "json")
        running.wait_for_step(2)
        pid, = self.rank_pids()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        resident = int(status.split("VmHWM:")[1].split()[0]) * 1024
        self.assertEqual(running.wait().code, OK)
        self.assertLess(resident, (120 + 32 + 32) << 20, "read from outside")


if __name__ == "__main__":
    unittest.main()
