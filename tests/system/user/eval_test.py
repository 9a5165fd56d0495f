#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace eval`: the loss of a checkpoint on texts is that of the job's own evaluation (which transformers_test.py holds against
transformers), whatever the batch; streams are read without gaps, documents alone, of conversations the answers."""
import json
import math
import pathlib
import random
import signal
import unittest

from support import INVALID_INPUT, LLAMA, TerraceTest, learnable_text

LENGTH = 32


class EvalTest(TerraceTest):
    def checkpoint(self, changes=None):
        """Of a few steps, and the loss that the job found on `held_out.txt`: 24 windows, of which an evaluation takes all."""
        text = learnable_text(24 * LENGTH + 1, seed=11)[:24 * LENGTH + 1]
        self.held_out = self.write("held_out.txt", text)
        job = self.job({"model.config": LLAMA, "data.sequence_length": LENGTH, "data.validation": "../held_out.txt",
                        "train.global_batch": 8, "train.eval_batches": 3, "train.steps": 30, **(changes or {})})
        result = self.train(job)
        return result.done["checkpoint"], result.events("eval")[-1]["loss"]

    def eval(self, checkpoint, *files, **options):
        flags = [flag for name, value in options.items() for flag in (f"--{name}", str(value))]
        data = [flag for file in files for flag in ("--data", str(file))]
        return json.loads(self.terrace("eval", checkpoint, *data, *flags, "-o", "json").out)

    def test_it_is_the_loss_of_the_jobs_own_evaluation(self):
        for precision in ("fp32", "bf16"):
            with self.subTest(precision):
                checkpoint, expected = self.checkpoint({"train.precision": precision})
                answer = self.eval(checkpoint, self.held_out)
                self.assertEqual(answer["sequence_length"], LENGTH)
                result, = answer["results"]
                self.assertEqual((result["tokens"], result["predicted"]), (24 * LENGTH + 1, 24 * LENGTH))
                self.assertAlmostEqual(result["loss"], expected, delta=1e-6 * expected)
                self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), delta=1e-9 * result["perplexity"])
                text = self.terrace("eval", checkpoint, "--data", self.held_out).out
                self.assertRegex(text, rf"held_out.txt +{24 * LENGTH + 1} +{24 * LENGTH} +{expected:.4f}")

    def test_every_token_but_the_first_counts_once(self):
        checkpoint, _ = self.checkpoint()
        files = [self.write("odd.txt", learnable_text(1000, seed=3)[:997]), self.write("two.txt", "ab")]
        one = self.eval(checkpoint, *files, batch=1)["results"]
        self.assertEqual([(result["tokens"], result["predicted"]) for result in one], [(997, 996), (2, 1), (999, 997)])
        total = 996 * one[0]["loss"] + one[1]["loss"]
        self.assertAlmostEqual(one[2]["loss"], total / 997, delta=1e-9)
        for batch in (7, 64):
            for result, expected in zip(self.eval(checkpoint, *files, batch=batch)["results"], one):
                self.assertAlmostEqual(result["loss"], expected["loss"], delta=1e-5 * expected["loss"], msg=f"batch {batch}")
        # With less of the text before a token the loss is higher; with the same it is the same.
        short = self.eval(checkpoint, files[0], length=4)
        self.assertEqual((short["sequence_length"], short["results"][0]["predicted"]), (4, 996))
        self.assertGreater(short["results"][0]["loss"], one[0]["loss"])

    def lines(self, name, count, seed):
        """Prompts of which two in three are short of a row and one is longer, with answers that follow from them."""
        source, rows = random.Random(seed), []
        for i in range(count):
            word = "".join(source.choice("abcd") for _ in range(3))
            rows.append({"prompt": f"{word * (1 if i % 3 else 14)}: ", "completion": f"{word}, so it is"})
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def test_documents_are_read_as_the_job_reads_them(self):
        train, held_out = self.lines("train.jsonl", 96, 5), self.lines("held_out.jsonl", 24, 6)
        for changes, counted in (({"data.samples": "documents"}, "answers"), ({"data.samples": "packed"}, "answers"),
                                 ({"data.samples": "documents", "data.loss_on": "all"}, "all")):
            with self.subTest(str(changes)):
                # As many batches as have every row once, which a first look at the file says.
                job = self.job({"model.config": LLAMA, "data.train": str(train), "data.validation": str(held_out),
                                "data.sequence_length": LENGTH, "train.global_batch": 1, "train.steps": 40,
                                "train.eval_batches": 32 if counted == "all" else 24, **changes})
                result = self.train(job)
                answer = self.eval(result.done["checkpoint"], held_out)
                self.assertEqual((answer["samples"], answer["loss_on"]), ("documents", counted))
                mine, = answer["results"]
                answers = 24 * len("abc, so it is")
                self.assertEqual(mine["predicted"], answers if counted == "answers" else mine["tokens"] - 24)
                if changes["data.samples"] == "documents":
                    self.assertAlmostEqual(mine["loss"], result.events("eval")[-1]["loss"], delta=1e-6 * mine["loss"])
                text = self.terrace("eval", result.done["checkpoint"], "--data", held_out).out
                self.assertEqual("answers alone count" in text, counted == "answers")
                self.assertIn("each document alone", text)

    def test_conversations_take_the_jobs_template(self):
        template = self.write("turns.jinja", "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}")
        other = self.write("other.jinja", "{% for m in messages %}{{ m.role }} says {% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}")
        rows = [{"messages": [{"role": "user", "content": f"{word}?"}, {"role": "assistant", "content": f"{word}."}]}
                for word in ("aab", "bba", "abab", "bbb")] * 6
        chats = self.write("chats.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        job = self.job({"model.config": LLAMA, "data.train": str(chats), "data.validation": str(chats), "data.chat_template": str(template),
                        "data.samples": "documents", "data.sequence_length": 64, "train.global_batch": 1, "train.eval_batches": 24,
                        "train.steps": 60})
        result = self.train(job)
        checkpoint, expected = result.done["checkpoint"], result.events("eval")[-1]["loss"]
        self.assertEqual((pathlib.Path(checkpoint) / "chat_template.jinja").read_text(), template.read_text())
        template.unlink()  # the checkpoint has a copy
        mine, = self.eval(checkpoint, chats)["results"]
        self.assertAlmostEqual(mine["loss"], expected, delta=1e-6 * expected)
        self.terrace("ckpt", "export", checkpoint, "--output", self.folder / "exported")
        self.assertIn("{% generation %}", (self.folder / "exported/chat_template.jinja").read_text())
        theirs, = self.eval(checkpoint, chats, **{"chat-template": other})["results"]
        self.assertGreater(abs(theirs["loss"] - expected), 0.01 * expected)

    def test_a_bit_that_has_changed_is_found_before_anything_is_computed(self):
        checkpoint, _ = self.checkpoint()
        for name, old, new in (("model.safetensors", None, None), ("config.json", b'"rope_theta": 10000.0', b'"rope_theta": 10001.0')):
            with self.subTest(name):
                path = pathlib.Path(checkpoint) / name
                whole = path.read_bytes()
                path.write_bytes(whole.replace(old, new) if old else whole[:-100] + bytes([whole[-100] ^ 4]) + whole[-99:])
                self.assertNotEqual(path.read_bytes(), whole)
                for command in (("eval", checkpoint, "--data", self.held_out), ("generate", checkpoint, "--prompt", "the ")):
                    result = self.terrace(*command, code=INVALID_INPUT)
                    self.refused(result, f"{name} is damaged: its checksum is", "use an older checkpoint")
                path.write_bytes(whole)
        # What is not read is not compared.
        (pathlib.Path(checkpoint) / "optimizer.safetensors").write_bytes(b"gone")
        self.eval(checkpoint, self.held_out)

    def test_an_interrupt_leaves_nothing_behind(self):
        checkpoint, _ = self.checkpoint()
        places = self.folder / "places"
        places.mkdir()
        self.environment["TMPDIR"] = str(places)
        text = self.write("long.txt", learnable_text(8_000_000))
        for number in (signal.SIGINT, signal.SIGTERM):
            running = self.start("eval", checkpoint, "--data", text, "--batch", 1)
            self.wait_until(lambda: any(places.glob("*/tokens/*")), "it writes tokens")
            running.signal(number)
            self.assertEqual(running.wait().code, 128 + number)
            self.assertEqual(list(places.iterdir()), [])
        self.assertEqual(self.wait_until_nothing_runs(5), {})

    def test_a_checkpoint_without_a_tokenizer_takes_one_that_is_named(self):
        text = self.write("train.txt", learnable_text(20_000))
        self.terrace("tokenize", "--tokenizer", "bytes", "--output", self.folder / "train.bin", text)
        checkpoint, expected = self.checkpoint({"data.train": str(self.folder / "train.bin"), "data.validation": None})
        self.refused(self.terrace("eval", checkpoint, "--data", self.held_out, code=None), "name one with --tokenizer")
        self.terrace("tokenize", "--tokenizer", "bytes", "--output", self.folder / "held_out.bin", self.held_out)
        by_tokens, = self.eval(checkpoint, self.folder / "held_out.bin")["results"]
        by_text, = self.eval(checkpoint, self.held_out, tokenizer="bytes")["results"]
        self.assertEqual({**by_tokens, "data": ""}, {**by_text, "data": ""})

    def test_weights_that_no_job_wrote_are_evaluated_as_one_stream(self):
        checkpoint, _ = self.checkpoint()
        own, = self.eval(checkpoint, self.held_out)["results"]
        exported = self.folder / "exported"
        self.terrace("ckpt", "export", checkpoint, "--output", exported)
        self.assertFalse((exported / "manifest.json").exists())
        refused = self.terrace("eval", exported, "--data", self.held_out, code=None)
        self.refused(refused, "has no tokenizer.json and no tokenizer.model", "--tokenizer")
        answer = self.eval(exported, self.held_out, tokenizer="bytes", length=LENGTH)
        self.assertEqual((answer["samples"], answer["loss_on"]), ("stream", "all"))
        theirs, = answer["results"]
        self.assertAlmostEqual(theirs["loss"], own["loss"], delta=1e-6 * own["loss"])
        self.assertEqual(self.eval(exported, self.held_out, tokenizer="bytes")["sequence_length"], 64, "all positions")
        with self.subTest("a checkpoint that has lost its manifest is none"):
            (pathlib.Path(checkpoint) / "manifest.json").unlink()
            self.refused(self.terrace("eval", checkpoint, "--data", self.held_out, code=None), "manifest.json")

    def test_what_cannot_be_is_refused(self):
        checkpoint, _ = self.checkpoint()
        one = self.write("one.txt", "a")
        for arguments, words in ((("--data", "nowhere.txt"), ("nowhere.txt",)),
                                 (("--data", one), ("one.txt: has 1 token, must have at least two",)),
                                 (("--data", self.held_out, "--length", "4096"), ("--length: got 4096, must be at most 64",)),
                                 (("--data", self.held_out, "--tokenizer", "none.json"), ("--tokenizer: ", "none.json"))):
            with self.subTest(words[0]):
                self.refused(self.terrace("eval", checkpoint, *arguments, code=None), *words)
        for flags in ((), ("-o", "json")):
            result = self.terrace("eval", self.folder, "--data", self.held_out, *flags, code=None)
            self.refused(result, "manifest.json")
            self.assertNotEqual(result.code, 0)
        self.assertIn("manifest.json", json.loads(result.out)["error"]["message"])
        # Nothing is computed before all is known to be there, and nothing is left behind.
        result = self.terrace("eval", checkpoint, "--data", self.held_out, "--data", "nowhere.txt", code=None)
        self.refused(result, "nowhere.txt")


if __name__ == "__main__":
    unittest.main()
