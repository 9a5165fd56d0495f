#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bundle: everything that its programs load lies in it or is the C library's, it runs from any folder in an empty
environment, whatever LD_LIBRARY_PATH says, and without an NVIDIA driver it says so in one line and trains on the CPU.

Makes the bundle of the build tree that TERRACE_BIN belongs to; nothing is packed.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from support import BIN, GPT, ROOT, learnable_text

SYSTEM = re.compile(r"^(ld-linux-x86-64\.so\.2|lib(c|m|dl|rt|pthread|util|resolv|mvec|anl)\.so\.\d+|linux-vdso\.so\.1)$")
SECONDS = 240


def run(*command, **environment):
    """In an environment with nothing but what programs cannot do without."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS,
                          env={"PATH": "/usr/bin:/bin", **environment})


class BundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-bundle-"))
        made = subprocess.run([ROOT / "deploy/bundle.sh", "--build", BIN.parent, "--output", cls.folder, "--folder-only"],
                              capture_output=True, text=True, timeout=SECONDS)
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        made_in = pathlib.Path(made.stdout.splitlines()[-1])
        cls.bundle = cls.folder / "moved elsewhere" / "terrace"  # a blank in the name, and another one
        cls.bundle.parent.mkdir()
        made_in.rename(cls.bundle)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def job(self, folder, **resources):
        folder.mkdir()
        (folder / "corpus.txt").write_text(learnable_text(30_000))
        (folder / "job.yaml").write_text(json.dumps({
            "name": "bundled", "model": {"config": GPT}, "data": {"train": "corpus.txt", "sequence_length": 32},
            "train": {"steps": 8, "global_batch": 8, "precision": "fp32", "optimizer": {"lr": 3e-3}, "eval_batches": 1},
            "resources": {"threads_per_device": 1, **resources}, "checkpoint": {"directory": "checkpoints"}}))
        return folder / "job.yaml"

    def train(self, bundle, folder, **environment):
        done = run(bundle / "bin/terrace", "run", self.job(folder), "-o", "json", "--state-dir", folder / "state",
                   HOME=str(folder), **environment)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return [event["loss"] for event in map(json.loads, done.stdout.splitlines()) if event["event"] == "step"]

    def test_nothing_is_loaded_from_outside_but_the_c_library(self):
        for file in (self.bundle / "bin").iterdir():
            loaded = run("ldd", file).stdout
            self.assertNotIn("not found", loaded, file)
            for name, path in re.findall(r"^\s*(\S+) => (.+) \(0x", loaded, re.MULTILINE):
                if not SYSTEM.match(name):
                    self.assertEqual(pathlib.Path(path).resolve().parent, (self.bundle / "lib").resolve(), f"{file}: {name}")

    def test_what_libraries_name_is_in_it_too(self):
        for file in (self.bundle / "lib").iterdir():
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", file).stdout):
                self.assertTrue(SYSTEM.match(name) or (self.bundle / "lib" / name).exists(), f"{file}: {name}")

    def test_no_part_of_the_c_library_or_the_driver_is_in_it(self):
        for file in (self.bundle / "lib").iterdir():
            self.assertNotRegex(file.name, SYSTEM)
            self.assertNotRegex(file.name, r"^lib(cuda\.so|nvidia)")

    def test_search_paths_are_relative_to_the_programs(self):
        for file in (self.bundle / "bin").iterdir():
            dynamic = run("readelf", "-d", file).stdout
            self.assertEqual(re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", dynamic), [("RPATH", "$ORIGIN/../lib")], file)

    def test_every_library_comes_with_its_licence(self):
        index = dict(line.split() for line in (self.bundle / "licenses/INDEX").read_text().splitlines())
        self.assertEqual(sorted(index), sorted(f"lib/{file.name}" for file in (self.bundle / "lib").iterdir()))
        for text in index.values():
            self.assertGreater((self.bundle / text).stat().st_size, 500, text)
        self.assertIn("Apache License", (self.bundle / "LICENSE").read_text())

    def test_a_job_runs_from_two_folders_alike(self):
        copy = self.folder / "copy"
        shutil.copytree(self.bundle, copy, symlinks=True)
        losses = self.train(self.bundle, self.folder / "first")
        self.assertEqual(len(losses), 8)
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(self.train(copy, self.folder / "second"), losses)
        shutil.rmtree(copy)

    def test_the_users_library_path_is_not_asked(self):
        bad = self.folder / "bad"
        bad.mkdir()
        for name in ("libprotobuf.so.32", "libstdc++.so.6"):
            (bad / name).write_bytes(b"not a library")
        done = run(self.bundle / "bin/terrace-coordinator", "presets", LD_LIBRARY_PATH=str(bad))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_a_driver_one_line_says_so_and_the_cpu_goes_on(self):
        hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HOME": str(self.folder)}
        done = run(self.bundle / "bin/terrace-rank", "devices", **hidden)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\Ano GPU: [^\n]+\n\Z")
        self.train(self.bundle, self.folder / "auto", CUDA_VISIBLE_DEVICES="-1")
        refused = run(self.bundle / "bin/terrace", "run", self.job(self.folder / "cuda", device="cuda"), "--state-dir",
                      self.folder / "cuda/state", **hidden)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("device", refused.stderr)

    def test_demo_and_gpu_checks_are_in_it(self):
        self.assertTrue(os.access(self.bundle / "deploy/demo.sh", os.X_OK))
        self.assertTrue((self.bundle / "docs/spec.md").exists())
        if (self.bundle / "bin/gpu_conformance").exists():
            done = run(self.bundle / "tests/gpu/run.sh", "conformance", CUDA_VISIBLE_DEVICES="-1",
                       TERRACE_GPU_OUT=str(self.folder / "out"))
            self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
            self.assertIn("cuda: no NVIDIA ", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
