#!/usr/bin/env python3
"""Every part that can be rehearsed takes its steps on the CPU and finds its bounds held there.

Usage: rehearsal_test.py FOLDER_OF_PROGRAMS
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else pathlib.Path()
HERE = pathlib.Path(__file__).resolve().parent


class RehearsalTest(unittest.TestCase):
    def setUp(self):
        self.out = pathlib.Path(tempfile.mkdtemp())

    def rehearse(self, name):
        done = subprocess.run([HERE / "run.sh", name], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "TERRACE_GPU_DEVICE": "cpu", "TERRACE_GPU_OUT": str(self.out), "TERRACE_BIN": str(BIN),
                                   "TERRACE_PYTHON": sys.executable})
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertEqual(summary["parts"][name]["exit_code"], done.returncode)
        return done

    def test_parts(self):
        for name, rows in (("parity", 10), ("memory", 4), ("offload", 4), ("shared", 7), ("rates", 6)):
            with self.subTest(name):
                done = self.rehearse(name)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                report = json.loads((self.out / f"{name}.json").read_text())
                self.assertTrue(report["rehearsal"])
                self.assertEqual([row["passed"] for row in report["rows"]], [True] * rows)
                self.assertIn("nothing here is about GPUs", done.stdout)

    def test_models_beyond_the_device(self):
        done = self.rehearse("large")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        resident, beyond = json.loads((self.out / "large.json").read_text())["rows"]
        self.assertIsNone(resident["passed"], "a rehearsal judges no speed")
        self.assertTrue(beyond["passed"])
        self.assertGreater(min(beyond[f"{tier}_gib"] for tier in ("device", "host", "nvme")), 0)

    def test_what_only_a_gpu_can_do_is_skipped_by_name(self):
        for name in ("conformance", "repeat", "sanitizer"):
            done = self.rehearse(name)
            self.assertEqual(done.returncode, 77)
            self.assertIn(f"{name}: not run: there is nothing to rehearse on the CPU", done.stderr)

    def test_pytorch(self):
        """With torch a comparison that judges nothing, without it a skip that names what is missing."""
        done = self.rehearse("bench")
        if done.returncode == 77:
            self.assertIn("has no torch: install it", done.stderr)
            return
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads((self.out / "bench.json").read_text())["rows"]
        self.assertEqual([row["passed"] for row in rows], [None, None])
        self.assertGreater(rows[0]["terrace_tokens_per_second"], 0)


if __name__ == "__main__":
    unittest.main()
