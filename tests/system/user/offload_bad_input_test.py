#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Offload that cannot be: refused before anything starts where the spec shows it, and otherwise when the rank prepares, with the
key, the figure and the way out."""
import os
import subprocess
import unittest

from support import INVALID_INPUT, LLAMA, RESOURCES, TerraceTest

WIDE = {**LLAMA, "hidden_size": 64, "intermediate_size": 128}
NVME = {"parameter": "nvme", "gradient": "nvme", "optimizer": "nvme"}

# changes, words of the message
CASES = {
    "a tier that is none": ({"layout.offload": {"optimizer": "disk"}}, ("layout.offload.optimizer", "disk", "nvme")),
    "a class that is none": ({"layout.offload": {"optimiser": "host"}}, ("layout.offload", "optimiser", "optimizer")),
    "shares that are not whole": ({"layout.offload": {"optimizer": {"host": 0.5, "nvme": 0.2}}}, ("layout.offload.optimizer", "1")),
    "no drive": ({"layout.offload": NVME, "resources.nvme": None}, ("layout.offload.optimizer", "folder", "resources: {nvme")),
    "parameters farther than their moments": ({"layout.offload": {"parameter": "nvme", "optimizer": "host"}},
                                              ("layout.offload.parameter", "optimizer")),
    "whole weights off the device": ({"layout.offload": {"parameter": "host", "optimizer": "host"}, "layout.zero": 1, "layout.dp": 2,
                                      "resources.devices_per_node": 2}, ("layout.offload.parameter", "zero 1", "layout.zero 3")),
    "an allocator that is none": ({"layout.allocator": "pooled"}, ("layout.allocator", "planned", "caching", "expandable")),
    "chunks that are no pages": ({"layout.offload": NVME, "layout.chunk_bytes": 5000}, ("layout.chunk_bytes", "4096")),
    "a queue of nothing": ({"layout.offload": NVME, "resources.nvme": {"paths": ["nvme"], "queue_depth": 0}},
                           ("resources.nvme.queue_depth",)),
    "an engine that is none": ({"layout.offload": NVME, "resources.nvme": {"paths": ["nvme"], "engine": "aio"}},
                               ("resources.nvme.engine", "io_uring")),
}


class OffloadBadInputTest(TerraceTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()

    def offloaded(self, changes):
        return self.job({"model.config": WIDE, "train.steps": 4, "layout.offload": NVME, "resources.nvme": str(self.nvme), **changes})

    def test_what_the_spec_shows(self):
        for name, (changes, words) in CASES.items():
            with self.subTest(name):
                self.refused(self.terrace("plan", self.offloaded(changes), code=INVALID_INPUT), *words)

    def test_too_little_host_memory_names_the_tier_and_the_figure(self):
        job = self.offloaded({"layout.offload": {"parameter": "host", "gradient": "host", "optimizer": "host"},
                              "resources.host_memory": "1MiB", "model.config": {**WIDE, "hidden_size": 256}})
        self.refused(self.terrace("plan", job, code=RESOURCES), "host", "1.0 MiB")

    def test_a_folder_that_is_not_there(self):
        result = self.train(self.offloaded({"resources.nvme": str(self.folder / "nowhere")}), code=None)
        self.assertNotEqual(result.code, 0)
        self.refused(result, "nowhere", "nvme")
        self.assertEqual(result.events("step"), [])

    @unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
    def test_a_drive_that_is_full(self):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", self.nvme], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.nvme], check=True)
        result = self.train(self.offloaded({}), code=RESOURCES)
        self.refused(result, str(self.nvme), "free")
        self.assertEqual(result.events("step"), [], "told before it trains")

    @unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
    def test_a_drive_that_cannot_be_written(self):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", self.nvme], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.nvme], check=True)
        result = self.train(self.offloaded({}), code=None)
        self.assertNotEqual(result.code, 0)
        self.refused(result, str(self.nvme), "read-only")


if __name__ == "__main__":
    unittest.main()
