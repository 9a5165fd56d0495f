#!/usr/bin/env python3
"""Without a GPU each program and part of tests/gpu says one line that names what is missing, and exits 77, whatever the machine
has.

Usage: no_gpu_test.py FOLDER_OF_PROGRAMS
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else pathlib.Path()
HERE = pathlib.Path(__file__).resolve().parent
NO_GPU = r"cuda: no NVIDIA (driver|device) [^\n]+\n\Z"


def run(*command):
    # A machine that has GPUs shows none.
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, env=env)


class ProgramsTest(unittest.TestCase):
    def test_one_line_and_its_own_exit_code(self):
        for program, name in (("gpu_conformance", "conformance"), ("gpu_kernels", "kernels")):
            with self.subTest(program):
                done = run(BIN / program)
                self.assertEqual(done.returncode, 77, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertRegex(done.stderr, rf"\A{name}: " + NO_GPU)

    def test_cases_are_listed_without_one(self):
        done = run(BIN / "gpu_conformance", "--list", "--filter", "rms_norm_grad")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rms_norm_grad_of_rms_norm_bf16_3x7\n", done.stdout)
        done = run(BIN / "gpu_kernels", "--list", "--filter", "attention grad")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("attention grad 2x8192 heads 16/16 size 128\n", done.stdout)

    def test_a_wrong_argument_is_named(self):
        for program, name, argument in (("gpu_conformance", "conformance", "--rounds"), ("gpu_kernels", "kernels", "--seconds")):
            done = run(BIN / program, argument, "0")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, rf"\A{name}: got '{argument}', must be [^\n]+\n\Z")


    def test_cublas_is_loaded_by_those_who_call_it(self):
        """Linked, it would cost every rank on a CPU 150 MB."""
        for program in ("gpu_conformance", "gpu_kernels", "terrace-rank"):
            self.assertNotIn("cublas", run("ldd", BIN / program).stdout, program)


class KernelsRehearsalTest(unittest.TestCase):
    def test_every_case_has_a_row_and_nothing_is_judged(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "kernels.json")
            done = run(BIN / "gpu_kernels", "--device", "cpu", "--filter", "norm", "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("nothing here is about GPUs", done.stdout)
            report = json.loads(path.read_text())
        listed = run(BIN / "gpu_kernels", "--list", "--device", "cpu", "--filter", "norm").stdout.splitlines()
        self.assertEqual([row["kernel"] for row in report["rows"]], listed)
        self.assertTrue(report["rehearsal"] and report["complete"])
        for row in report["rows"]:
            self.assertGreater(row["rate"], 0)
            self.assertIsNone(row["passed"])

    def test_a_run_that_is_out_of_time_has_not_passed(self):
        done = run(BIN / "gpu_kernels", "--device", "cpu", "--filter", "norm", "--seconds", "1e-9")
        self.assertEqual(done.returncode, 1)
        self.assertIn("out of time after 0 of ", done.stdout)


class PartsTest(unittest.TestCase):
    def test_a_part_without_a_gpu_is_skipped_by_name(self):
        for part in ("parity", "memory", "offload", "shared", "rates"):
            with self.subTest(part), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "part.json")
                done = run(sys.executable, "-B", HERE / f"{part}.py", "--bin", BIN, "--json", path)
                self.assertEqual(done.returncode, 77, done.stderr)
                self.assertRegex(done.stderr, rf"\A{part}: not run: " + NO_GPU)
                self.assertEqual(json.loads(path.read_text())["exit_code"], 77)

    def test_missing_programs_are_named(self):
        done = run(sys.executable, "-B", HERE / "parity.py", "--bin", "/nowhere")
        self.assertEqual(done.returncode, 77)
        self.assertIn("there is no /nowhere/terrace", done.stderr)


if __name__ == "__main__":
    unittest.main()
