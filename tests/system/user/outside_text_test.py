#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text that is not UTF-8, in every file and name that a user gives: one error that names the place, at once, with the job not
started again; the bytes of the message itself are UTF-8 and act on no terminal."""
import json
import os
import struct
import subprocess
import unittest

from support import GPT, INVALID_INPUT, TerraceTest


def header(text):
    """A safetensors file whose header is `text`."""
    return struct.pack("<Q", len(text)) + text + bytes(4)


class OutsideTextTest(TerraceTest):
    def run_refused(self, job, *words):
        result = self.train(job, code=INVALID_INPUT)
        self.refused(result, "xe9", *words)
        self.assertEqual(result.events("restarted"), [], "an error of the input is no failure of a machine")
        self.assertEqual([character for character in result.err if character < " " and character not in "\n\t"], [])
        return result

    def test_a_line_of_the_data(self):
        self.write("bad.jsonl", b'{"text":"good line"}\n{"text":"caf\xe9 latin1"}\n')
        self.run_refused(self.job({"data.train": "../bad.jsonl"}), "data.train", "bad.jsonl:2")

    def test_a_long_line_is_not_repeated_in_the_message(self):
        self.write("long.jsonl", b'{"text":"' + b"x" * 300_000 + b"\x1b[2J\xe9" + b'"}\n')
        result = self.train(self.job({"data.train": "../long.jsonl"}), code=INVALID_INPUT)
        self.refused(result, "long.jsonl:1", "more bytes")
        self.assertLess(len(result.err), 4000)

    def test_the_header_of_the_weights(self):
        path = self.write("bad.safetensors", header(b'{"caf\xe9":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'))
        self.run_refused(self.job({"model.init": str(path)}), "bad.safetensors", "header")

    def test_the_tokenizer(self):
        text = b'{"version":"1.0","model":{"type":"BPE","vocab":{"caf\xe9":0},"merges":[]}}'
        path = self.write("tokenizer.json", text)
        self.run_refused(self.job({"data.tokenizer": str(path)}), "tokenizer.json")

    def test_the_config(self):
        path = self.write("config.json", json.dumps(GPT).encode()[:-1] + b', "author": "Ren\xe9"}')
        self.run_refused(self.job({"model.config": str(path)}), "model.config", "config.json", "line 1")

    def test_the_spec(self):
        job = self.job()
        job.write_bytes(job.read_bytes() + b"\n# Ren\xe9\n")
        self.run_refused(job, "line", "column 6", "the spec", "utf-8")

    def test_the_names_of_files_and_folders(self):
        folder = os.fsencode(self.folder) + b"/caf\xe9"
        os.mkdir(folder)
        terrace = os.environ["TERRACE_BIN"] + "/terrace"
        for command, where in (([terrace, "plan", folder + b"/job.yaml"], None), ([terrace, "plan", "job.yaml"], folder)):
            result = subprocess.run(command, cwd=where, capture_output=True, timeout=60)
            self.assertEqual(result.returncode, INVALID_INPUT)
            self.assertIn("caf\\xe9", result.stderr.decode())
            self.assertIn("must be UTF-8", result.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
