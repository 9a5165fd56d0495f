#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace memory --snapshot` as PyTorch's own functions for such files read it (torch.cuda._memory_viz), and by the rules of its
viewer: what it cannot place, it stops at.

Needs torch: run it with a Python that has it (cmake -DTERRACE_TORCH_PYTHON=...).
"""
import base64
import contextlib
import io
import json
import pickle
import pickletools
import re
import unittest

from offload_run_test import HOST
from service import ServiceTest
from support import GPT

try:
    from torch.cuda import _memory_viz
except ImportError as error:
    raise SystemExit(f"memory_viewer_test needs torch: {error}. Name a Python that has it: "
                     "cmake --preset release -DTERRACE_TORCH_PYTHON=/path/to/python")

ENDLESS = {"train.steps": 1_000_000, "model.config": {**GPT, "n_layer": 12}}
OPCODES = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BININT", "LONG1", "TUPLE2", "NEWTRUE", "NEWFALSE",
           "STOP"}  # all of them among those that the viewer reads
ARGUMENTS = 60_000  # that JavaScript's engines let one call have, by far


class MemoryViewerTest(ServiceTest):
    def snapshot_of(self, layout):
        """(bytes of the file, JSON of the plan's memory) of a job that trains."""
        self.start_service(1)
        job = self.submit(self.job({**ENDLESS, "layout": layout, "resources.host_memory": "1GiB"}))
        self.wait_for_state(job, "RUNNING")
        path = self.folder / "memory.pickle"
        self.cli("memory", job, "--snapshot", path)
        memory = self.status(job)["plan"]["memory"]
        self.cli("cancel", "--force", job)
        return path.read_bytes(), memory

    def assert_viewer_reads(self, file):
        """The viewer's reader knows a part of the format, and hands each batch of items over as arguments."""
        names = [opcode.name for opcode, _, _ in pickletools.genops(file)]
        self.assertLessEqual(set(names), OPCODES)
        items, most = [], 0
        for name in names:
            if name == "MARK":
                items.append(0)
            elif name in ("APPENDS", "SETITEMS"):
                most = max(most, items.pop())
            elif items:
                items[-1] += 1
        self.assertLess(most, ARGUMENTS)

    def assert_viewer_places(self, data):
        """Backwards from the end of the step, as it draws the state at each event: each block lies in a segment, on no other."""
        for device, events in enumerate(data["device_traces"]):
            segments = [segment for segment in data["segments"] if segment["device"] == device]
            self.assertTrue(segments)
            blocks = {}
            for segment in segments:
                at = segment["address"]
                for block in segment["blocks"]:  # one behind the other, whatever their addresses say
                    self.assertEqual(block["address"], at)
                    if block["state"] == "active_allocated":
                        blocks[at] = block["size"]
                    at += block["size"]
                self.assertEqual(at, segment["address"] + segment["total_size"])
            persistent = dict(blocks)
            for event in reversed(events):
                if event["action"] == "free_completed":
                    self.assertTrue(any(segment["address"] <= event["addr"] and event["addr"] + event["size"] <=
                                        segment["address"] + segment["total_size"] for segment in segments), event)
                    self.assertNotIn(event["addr"], blocks, event)
                    blocks[event["addr"]] = event["size"]
                elif event["action"] == "free_requested":
                    self.assertIn(event["addr"], blocks, event)
                else:
                    self.assertEqual(event["action"], "alloc")
                    del blocks[event["addr"]]
            self.assertEqual(blocks, persistent, "at the step's start as at its end")

    def assert_pytorch_understands(self, data):
        summary = _memory_viz.segsum(data)  # raises where blocks and segments do not add up
        self.assertIn(f"segments: {len(data['segments'])}\n", summary)
        total = sum(segment["total_size"] for segment in data["segments"])
        self.assertIn(f"total_reserved: {_memory_viz.Bytes(total)}\n", summary)
        text = _memory_viz.trace(data)
        allocated = [event for events in data["device_traces"] for event in events if event["action"] == "alloc"]
        self.assertEqual(len(re.findall(r"^\w+ = ", text, re.M)), len(allocated))
        self.assertNotIn("{", text, "no event that it does not know")
        for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
            page, = json.loads(re.search(r"const local_files = (\[.*\])", plot(data)).group(1))
            self.assertEqual(pickle.loads(base64.b64decode(page["base64"])), data)
        complaints = io.StringIO()
        with contextlib.redirect_stdout(complaints):
            left = _memory_viz.filter_alloc_free_pairs(data)
        self.assertEqual(complaints.getvalue(), "")
        self.assertEqual([events for events in left["device_traces"] if events], [], "what a step takes it gives back")

    def check(self, layout):
        file, memory = self.snapshot_of(layout)
        self.assert_viewer_reads(file)
        data = pickle.loads(file)
        self.assertEqual(len(data["device_traces"]), len(memory), "an arena is a device")
        frames = {frame["name"] for events in data["device_traces"] for event in events for frame in event["frames"]}
        self.assertTrue(any("loss" in name for name in frames), "buffers and instructions are named")
        self.assert_viewer_places(data)
        self.assert_pytorch_understands(data)

    def test_planned_memory_on_two_tiers(self):
        self.check({"offload": HOST, "recompute": "block"})

    def test_an_allocator_that_splits_and_merges(self):
        self.check({"allocator": "caching"})

    def test_segments_that_grow(self):
        self.check({"allocator": "expandable", "offload": HOST})


if __name__ == "__main__":
    unittest.main(verbosity=2)
