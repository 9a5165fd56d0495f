#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training files of conversations: a chat template renders them, within a rank that may start no programs, and the loss counts the
assistant's answers alone. What a template or a line does wrong ends the job with its file and line."""
import json
import pathlib
import random
import unittest

from support import LLAMA, TerraceTest

ROOT = pathlib.Path(__file__).resolve().parents[3]
ANSWER = "so it is"
TURNS = ("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}")
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


class ChatsTest(TerraceTest):
    def lines(self, name, make, count=96):
        generator = random.Random(5)
        rows = [make("".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(12))) for _ in range(count)]
        return self.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def messages(self, noise):
        return {"messages": [{"role": "user", "content": noise}, {"role": "assistant", "content": ANSWER}]}

    def chat(self, train, changes=None):
        return self.job({"model.config": LLAMA, "data.train": str(train), "data.samples": "documents", "data.sequence_length": 32,
                         "data.validation_fraction": 0.1, "data.chat_template": str(self.write("turns.jinja", TURNS)),
                         "train.steps": 60, "train.global_batch": 8, "train.optimizer.lr": 1e-2,
                         "train.schedule": {"name": "constant"}, "checkpoint.directory": str(self.folder / train.stem),
                         **(changes or {})})

    def test_the_loss_counts_answers_alone(self):
        share_gpt = self.lines("sharegpt", lambda noise: {"conversations": [{"from": "human", "value": noise},
                                                                            {"from": "gpt", "value": ANSWER}]})
        losses = self.train(self.chat(share_gpt)).losses
        self.assertLess(float(losses[max(losses)]), 0.1)
        everything = self.chat(self.lines("all", self.messages), {"data.loss_on": "all"})
        losses = self.train(everything).losses
        self.assertGreater(float(losses[max(losses)]), 1.0)  # 12 of 24 targets are letters of noise: log 26 each

    def test_a_completion_of_messages_counts_as_a_whole(self):
        train = self.lines("pairs", lambda noise: {"prompt": [{"role": "user", "content": noise}],
                                                   "completion": [{"role": "assistant", "content": ANSWER}]})
        shown = self.terrace("data", self.chat(train), "--rows", 1, "--steps", 5, "-o", "json").json()
        prompt, answer = shown["rows"][0]["spans"]
        self.assertRegex(prompt["text"], "^u:[a-z]{12};a:$")
        self.assertEqual((prompt["counted"], answer["counted"], answer["text"]), (False, True, ANSWER + ";"))
        half = self.write("half.jsonl", json.dumps({"prompt": [{"role": "user", "content": "x"}], "completion": "y"}) + "\n")
        self.refused(self.terrace("run", self.chat(half), code=None), "half.jsonl:1", "both must be texts, or both messages")

    def test_what_is_trained_on_can_be_looked_at(self):
        train = self.lines("chats", self.messages)
        shown = self.terrace("data", self.chat(train), "--rows", 1, "--steps", 5, "-o", "json").json()
        prompt, answer = shown["rows"][0]["spans"]
        self.assertRegex(prompt["text"], "^u:[a-z]{12};a:$")
        self.assertEqual((prompt["counted"], answer["counted"], answer["text"]), (False, True, ANSWER + ";"))
        self.assertEqual(int(shown["counted"]), 5 * 8 * len(ANSWER + ";"))
        self.assertEqual(int(shown["rows_without"]), 0)

    def test_the_template_of_a_tokenizer_with_its_special_tokens(self):
        folder = self.folder / "base"
        folder.mkdir()
        document = json.loads((ROOT / "tests/unit/worker/data/testdata/qwen.json").read_text())
        base = len(document["model"]["vocab"])
        document["added_tokens"] = [{"id": base + i, "content": token, "special": True, "normalized": False, "lstrip": False,
                                     "rstrip": False, "single_word": False}
                                    for i, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]
        (folder / "tokenizer.json").write_text(json.dumps(document))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}))
        job = self.chat(self.lines("special", self.messages),
                        {"data.tokenizer": str(folder), "data.chat_template": None, "data.sequence_length": 64,
                         "model.config": {**LLAMA, "vocab_size": base + 3}})
        row = self.terrace("data", job, "--rows", 1, "--steps", 1, "-o", "json").json()["rows"][0]
        self.assertEqual(row["spans"][1]["text"], ANSWER + "<|im_end|>\n")
        self.assertTrue(row["spans"][0]["text"].endswith("<|im_end|>\n<|im_start|>assistant\n"))

    def test_what_cannot_be_rendered_is_refused(self):
        good = self.lines("good", self.messages, 12)
        cases = [
            ("role", {"messages": [{"role": "bird", "content": "x"}]}, None, ('the role "bird"', "role.jsonl:1")),
            ("from", {"conversations": [{"from": "bird", "value": "x"}]}, None, ('"from": "bird"',)),
            ("raises", self.messages("x"), "{{ raise_exception('Roles must dance') }}", ("Roles must dance", "raises.jinja")),
            ("syntax", self.messages("x"), "a\n{% for %}", ("cannot read line 2",)),
            ("changes", self.messages("x"), "{{ messages | length }}{{ messages[-1].content }}", ("data.loss_on: all", "changes.jsonl:1")),
        ]
        for name, row, template, words in cases:
            with self.subTest(name):
                changes = {} if template is None else {"data.chat_template": str(self.write(f"{name}.jinja", template))}
                job = self.chat(self.write(f"{name}.jsonl", json.dumps(row) + "\n"), changes)
                result = self.terrace("run", job, code=None)
                self.refused(result, *words)
                self.assertNotEqual(result.code, 0)
        self.refused(self.terrace("data", self.chat(good, {"data.chat_template": "nothing.jinja"}), code=None), "nothing.jinja")
        self.refused(self.terrace("plan", self.chat(good, {"data.loss_on": "most"}), code=None), "data.loss_on", "answers")

    def test_a_resumed_job_is_told_of_another_template(self):
        train = self.lines("resumed", self.messages)
        self.train(self.chat(train, {"train.steps": 10}))
        result = self.terrace("run", self.chat(train, {"train.steps": 12, "data.loss_on": "all"}), code=None)
        self.refused(result, "data.loss_on", "answers")


if __name__ == "__main__":
    unittest.main(verbosity=2)
