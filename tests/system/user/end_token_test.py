#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents end with the tokenizer's end token; `terrace generate` stops there, and so does what reads an export."""
import json
import unittest

from support import LLAMA, ROOT, TerraceTest

TOKENIZER = ROOT / "tests/unit/worker/data/testdata/qwen.json"


class EndTokenTest(TerraceTest):
    def test_generation_stops_where_the_export_says(self):
        tokenizer = json.loads(TOKENIZER.read_text())
        first = len(tokenizer["model"]["vocab"])
        names = ["<pad>", "</s>", "<turn>"]  # a well-known name that is not meant
        tokenizer["added_tokens"] = [{"id": first + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                                      "normalized": False, "special": True} for i, name in enumerate(names)]
        self.write("t/tokenizer.json", json.dumps(tokenizer))
        self.write("t/tokenizer_config.json", json.dumps({"eos_token": "<turn>", "pad_token": "<pad>", "chat_template": "{{ x }}"}))
        self.write("quote.jsonl", json.dumps({"text": "say \"hello\" to all of them"}) + "\n")
        self.write("quote.jsonl", (self.folder / "quote.jsonl").read_text() * 40)
        job = self.job({"model.config": {**LLAMA, "vocab_size": first + 3, "eos_token_id": 2}, "data.train": "../quote.jsonl",
                        "data.validation": "../quote.jsonl", "data.tokenizer": "../t", "data.samples": "documents",
                        "data.sequence_length": 32, "train.steps": 150, "train.global_batch": 8, "train.optimizer": {"lr": 5e-3}})
        checkpoint = self.train(job).done["checkpoint"]
        made = self.terrace("generate", checkpoint, "--prompt", "say", "--tokens", 60, "--temperature", 0, "-o", "json").json()
        self.assertEqual(made["text"], " \"hello\" to all of them")
        self.terrace("ckpt", "export", checkpoint, "--output", self.folder / "out")
        read = lambda name: json.loads((self.folder / "out" / name).read_text())
        self.assertEqual(read("config.json")["eos_token_id"], first + 2)
        self.assertEqual(read("config.json")["pad_token_id"], first)
        self.assertEqual(read("generation_config.json")["eos_token_id"], first + 2)
        self.assertEqual(read("tokenizer_config.json")["eos_token"], "<turn>")
        self.assertEqual(read("tokenizer_config.json")["chat_template"], "{{ x }}")
        self.assertEqual(read("special_tokens_map.json")["eos_token"], "<turn>")
        again = self.terrace("generate", self.folder / "out", "--prompt", "say", "--tokens", 60, "--temperature", 0, "-o", "json").json()
        self.assertEqual(again["text"], made["text"], "weights without a job")


if __name__ == "__main__":
    unittest.main(verbosity=2)
