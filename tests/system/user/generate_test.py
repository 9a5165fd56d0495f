#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace generate`: texts side by side are those that each is alone, they end where they are told to, go on beyond what is seen at a
time, and what is kept of them has the bytes of the formula."""
import json
import unittest

from support import INVALID_INPUT, LLAMA, NOT_FOUND, USAGE, TerraceTest

CONTEXT = 64


class GenerateTest(TerraceTest):
    def generate(self, checkpoint, *prompts, **options):
        flags = [flag for name, value in options.items() for flag in (f"--{name.replace('_', '-')}", str(value))]
        asked = [f"--prompt={prompt}" for prompt in prompts]
        return json.loads(self.terrace("generate", checkpoint, *asked, *flags, "-o", "json").out)

    def test_texts_are_continued_as_they_are_asked_to(self):
        job = self.job({"model.config": LLAMA, "data.sequence_length": CONTEXT, "train.steps": 200, "train.optimizer": {"lr": 1e-2}})
        checkpoint = self.train(job).done["checkpoint"]
        prompts = ("the king", "a", "in the beginning the people of the land were many, and their king was")
        likeliest = {"tokens": 24, "temperature": 0}
        alone = [self.generate(checkpoint, prompt, **likeliest) for prompt in prompts]

        with self.subTest("several at once"):
            together = self.generate(checkpoint, *prompts, **likeliest)
            self.assertEqual([text["prompt"] for text in together["texts"]], list(prompts))
            self.assertEqual([text["text"] for text in together["texts"]], [answer["text"] for answer in alone])
            self.assertEqual([text["prompt_tokens"] for text in together["texts"]], [len(prompt) for prompt in prompts])
            printed = self.terrace("generate", checkpoint, "--prompt", prompts[0], "--prompt", prompts[1], "--tokens", 24,
                                   "--temperature", 0).out
            self.assertEqual(printed, "".join(f"{mark}==> {i} of 2 <==\n{answer['prompt']}{answer['text']}\n"
                                              for i, (mark, answer) in enumerate(zip(("", "\n"), alone), 1)))
        with self.subTest("the bytes of what is kept"):
            of_a_text = 2 * LLAMA["num_hidden_layers"] * CONTEXT * LLAMA["hidden_size"] // 2 * 4  # two of four heads, in f32
            self.assertEqual((alone[0]["context"], alone[0]["key_value_cache_bytes"]), (CONTEXT, of_a_text))
            self.assertEqual(together["key_value_cache_bytes"], 3 * of_a_text)
            self.assertGreater(alone[0]["arena_bytes"], of_a_text)
        with self.subTest("samples"):
            drawn = {"tokens": 30, "temperature": 1.5, "seed": 7, "top_k": 0}
            samples = [text["text"] for text in self.generate(checkpoint, "the", samples=3, **drawn)["texts"]]
            self.assertEqual(len(set(samples)), 3)
            self.assertEqual(samples[0], self.generate(checkpoint, "the", **drawn)["text"])
            # So little stays that the likeliest is drawn, whatever the temperature.
            for narrow in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}):
                self.assertEqual(self.generate(checkpoint, prompts[0], **{**drawn, "tokens": 24, **narrow})["text"], alone[0]["text"])
        with self.subTest("stops"):
            whole = alone[0]["text"]
            stop = whole[10:13]
            ended = self.generate(checkpoint, prompts[0], stop=stop, **likeliest)
            self.assertEqual((ended["text"], ended["finish_reason"]), (whole[:whole.index(stop)], "stop"))
            streamed = self.terrace("generate", checkpoint, "--prompt", prompts[0], "--tokens", 24, "--temperature", 0, "--stop", stop)
            self.assertEqual(streamed.out, f"{prompts[0]}{ended['text']}\n")
            self.assertEqual((alone[0]["finish_reason"], alone[0]["tokens"]), ("length", 24))
        with self.subTest("a penalty"):
            self.assertNotEqual(self.generate(checkpoint, prompts[0], repetition_penalty=5, **likeliest)["text"], alone[0]["text"])
        with self.subTest("beyond the context"):
            long = self.generate(checkpoint, prompts[0], tokens=3 * CONTEXT, temperature=0)
            self.assertEqual(long["tokens"], 3 * CONTEXT)
            self.assertTrue(long["text"].startswith(alone[0]["text"]))
            shorter = self.generate(checkpoint, prompts[0], tokens=24, temperature=0, context=16)
            self.assertEqual((shorter["context"], shorter["tokens"]), (16, 24))

        with self.subTest("what makes no sense"):
            for option, value, words in (("--context", 65, ("--context", "65", "64")), ("--stop", "", ("--stop", "empty")),
                                         ("--prompt", "", ("--prompt", "empty"))):
                refused = self.terrace("generate", checkpoint, "--prompt", "a", option, value, code=INVALID_INPUT)
                self.refused(refused, *words)
            for option, value in (("--top-p", 1.5), ("--top-p", "nan"), ("--min-p", -1), ("--samples", 0), ("--repetition-penalty", 0),
                                  ("--temperature", "nan"), ("--temperature", "inf"), ("--tokens", 0), ("--top-k", -1)):
                self.terrace("generate", checkpoint, "--prompt", "a", option, value, code=USAGE)
            folder = checkpoint.rsplit("/", 2)[0]
            self.refused(self.terrace("generate", folder, "--prompt", "a", code=NOT_FOUND), folder, "is no checkpoint", checkpoint)
            many = [word for _ in range(2) for word in ("--prompt", "a")]
            self.refused(self.terrace("generate", checkpoint, *many, "--samples", 4096, code=INVALID_INPUT), "--samples", "4096 texts")

    def test_a_token_that_the_model_does_not_have_is_refused(self):
        """Also where it would be forgotten before the model sees it: the penalty counts it."""
        tokens = self.folder / "capitals.bin"
        self.terrace("tokenize", "--tokenizer", "bytes", "--output", tokens, self.write("capitals.txt", "THE KING AND THE LAND " * 200))
        job = self.job({"model.config": {**LLAMA, "vocab_size": 96}, "data.train": str(tokens), "data.sequence_length": 16,
                        "train.steps": 2})
        checkpoint = self.train(job).done["checkpoint"]
        self.assertTrue(self.generate(checkpoint, "THE", tokens=4, repetition_penalty=1.5)["text"])
        for prompt in ("the", "the" + " KING" * 20):
            refused = self.terrace("generate", checkpoint, "--prompt", prompt, "--tokens", 4, "--repetition-penalty", 1.5,
                                   code=INVALID_INPUT)
            self.refused(refused, "--prompt", "token 116", "below 96")

    def test_a_long_prompt_loses_its_beginning_and_says_so(self):
        checkpoint = self.train(self.job({"model.config": LLAMA, "data.sequence_length": 16, "train.steps": 2})).done["checkpoint"]
        made = self.terrace("generate", checkpoint, "--prompt", "the king " * 4, "--tokens", 4)
        self.assertIn("of the 36 tokens of prompt 1 the last 12 are seen; --context sees more", made.err)
        self.assertNotIn("are seen", self.terrace("generate", checkpoint, "--prompt", "the", "--tokens", 4).err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
