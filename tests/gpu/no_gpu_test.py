#!/usr/bin/env python3
"""Without a GPU the conformance program says one line that names what is missing, and exits 77, whatever the machine has.

Usage: no_gpu_test.py PROGRAM
"""
import os
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop() if len(sys.argv) > 1 else ""


class NoGpuTest(unittest.TestCase):
    def run_program(self, *args):
        # A machine that has GPUs shows none.
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60, env=env)

    def test_one_line_and_its_own_exit_code(self):
        done = self.run_program()
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Aconformance: cuda: no NVIDIA (driver|device) [^\n]+\n\Z")

    def test_cases_are_listed_without_one(self):
        done = self.run_program("--list", "--filter", "rms_norm_grad")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rms_norm_grad_of_rms_norm_bf16_3x7\n", done.stdout)

    def test_a_wrong_argument_is_named(self):
        done = self.run_program("--rounds", "0")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Aconformance: got '--rounds', must be [^\n]+\n\Z")


if __name__ == "__main__":
    unittest.main()
