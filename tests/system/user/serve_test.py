#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace serve`: completions over HTTP are those of `terrace generate`, whoever else asks; log probabilities are those that `terrace eval`
counts; what is not done is refused by name; a signal ends the server with its requests."""
import concurrent.futures
import json
import re
import signal
import time
import unittest
import urllib.error
import urllib.request

from support import INVALID_INPUT, LLAMA, OK, TerraceTest

CONTEXT = 64
TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"


class ServeTest(TerraceTest):
    def serve(self, checkpoint, *options):
        running = self.start("serve", checkpoint, "--listen", "127.0.0.1:0", *options)
        found = self.wait_until(lambda: re.search(r"at port (\d+)", "".join(running.err)), "the server listens", seconds=30)
        self.url = f"http://127.0.0.1:{found.group(1)}"
        return running

    def ask(self, body, path="/v1/completions"):
        data = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(self, prompt, **options):
        code, answer = self.ask({"prompt": prompt, "temperature": 0, "max_tokens": 12, **options})
        self.assertEqual(code, 200, answer)
        return answer

    def parts(self, body, path="/v1/completions"):
        body = {"temperature": 0, "max_tokens": 12, "stream": True, **body}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, json.dumps(body).encode()), timeout=60) as response:
            self.assertEqual(response.headers["Content-Type"], "text/event-stream")
            events = response.read().decode().split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def test_completions_over_http(self):
        job = self.job({"model.config": LLAMA, "data.sequence_length": CONTEXT, "train.steps": 150, "train.optimizer": {"lr": 1e-2}})
        checkpoint = self.train(job).done["checkpoint"]
        prompts = [f"{word} of the {place}" for word in ("the king", "a", "bread") for place in ("land", "hill", "river")]
        expected = {prompt: self.terrace("generate", checkpoint, "--prompt", prompt, "--tokens", 12, "--temperature", 0,
                                         "-o", "json").json()["text"] for prompt in prompts}
        server = self.serve(checkpoint, "--texts", 3)

        with self.subTest("models"):
            self.assertEqual(self.ask(None, "/v1/models")[1]["data"][0]["id"], "step-00000150")
        with self.subTest("more at once than have a place, alone and in one request"):
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                answers = list(pool.map(self.complete, prompts * 2))
            self.assertEqual([answer["choices"][0]["text"] for answer in answers], [expected[prompt] for prompt in prompts * 2])
            together = self.complete(prompts, n=2)
            self.assertEqual([choice["text"] for choice in together["choices"]], [expected[p] for p in prompts for _ in range(2)])
            lengths = sum(map(len, prompts))
            self.assertEqual(together["usage"], {"prompt_tokens": lengths, "completion_tokens": 18 * 12, "total_tokens": lengths + 216})
        with self.subTest("log probabilities of a prompt"):
            text = "the king said that the land was good and the people"
            scored = self.complete(text, max_tokens=0, echo=True, logprobs=1)["choices"][0]
            self.assertEqual((scored["text"], scored["finish_reason"]), (text, "length"))
            logprobs = scored["logprobs"]
            self.assertEqual("".join(logprobs["tokens"]), text)
            self.assertEqual((logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]), (None, None))
            held_out = self.write("scored.txt", text)
            result, = self.terrace("eval", checkpoint, "--data", held_out, "-o", "json").json()["results"]
            self.assertAlmostEqual(-sum(logprobs["token_logprobs"][1:]) / (len(text) - 1), result["loss"], delta=1e-5)
            for own, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
                self.assertGreaterEqual(max(top.values()), own)
            self.assertEqual(self.complete(list(text.encode()), max_tokens=0, echo=True, logprobs=1)["choices"][0], scored, "as tokens")
        with self.subTest("log probabilities of what is added"):
            added = self.complete(prompts[0], logprobs=2)["choices"][0]
            self.assertEqual("".join(added["logprobs"]["tokens"]), added["text"])
            for token, own, top in zip(*(added["logprobs"][key] for key in ("tokens", "token_logprobs", "top_logprobs"))):
                self.assertEqual((len(top), max(top, key=top.get), top[token]), (2, token, own), "the likeliest was taken")
        with self.subTest("a stop, a seed"):
            stop = expected[prompts[0]][4:6]
            ended = self.complete(prompts[0], stop=[stop])["choices"][0]
            self.assertEqual((ended["text"], ended["finish_reason"]), (expected[prompts[0]].split(stop)[0], "stop"))
            drawn = [self.complete("the", temperature=1.5, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2)]
            self.assertEqual(drawn[0], drawn[1])
            self.assertNotEqual(drawn[0], drawn[2])

        with self.subTest("a bias and penalties"):
            self.assertEqual(self.complete("the", logit_bias={str(ord("q")): 100}, max_tokens=3)["choices"][0]["text"], "qqq")
            drawn = self.complete("the", presence_penalty=2, frequency_penalty=2, max_tokens=40)["choices"][0]["text"]
            plain = self.complete("the", max_tokens=40)["choices"][0]["text"]
            self.assertGreater(len(set(drawn)), len(set(plain)), (drawn, plain))
            added = self.terrace("generate", checkpoint, "--prompt", "the", "--tokens", 40, "--temperature", 0, "--presence-penalty", 2,
                                 "--frequency-penalty", 2, "-o", "json").json()["text"]
            self.assertEqual(added, drawn)

        with self.subTest("in parts as they come"):
            parts = self.parts({"prompt": prompts[:2], "n": 2, "logprobs": 1, "stream_options": {"include_usage": True}})
            whole = self.complete(prompts[:2], n=2, logprobs=1)
            self.assertEqual(parts.pop()["usage"], whole["usage"])
            self.assertEqual({(part["id"], part["object"], part["model"]) for part in parts},
                             {(parts[0]["id"], "text_completion", whole["model"])})
            for choice in whole["choices"]:
                of_choice = [part["choices"][0] for part in parts if part["choices"][0]["index"] == choice["index"]]
                self.assertGreater(len(of_choice), 6)
                self.assertEqual("".join(part["text"] for part in of_choice), choice["text"])
                self.assertEqual([part["finish_reason"] for part in of_choice], [None] * (len(of_choice) - 1) + [choice["finish_reason"]])
                for key, values in choice["logprobs"].items():
                    self.assertEqual(sum((part["logprobs"][key] for part in of_choice), []), values, key)
            stop = expected[prompts[0]][4:6]
            ended = self.parts({"prompt": prompts[0], "stop": stop})
            self.assertEqual("".join(part["choices"][0]["text"] for part in ended), expected[prompts[0]].split(stop)[0])
            self.assertEqual([part["choices"][0]["finish_reason"] for part in self.parts({"prompt": "a", "max_tokens": 0})], ["length"])

        with self.subTest("who stops reading makes room"):
            body = {"prompt": ["a"] * 100, "n": 40, "max_tokens": 60, "stream": True}  # takes ten seconds and more
            request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as response:
                self.assertTrue(response.readline().startswith(b"data: "))
            begin = time.monotonic()
            self.complete("the king")
            self.assertLess(time.monotonic() - begin, 5)

        with self.subTest("what is not done is refused by name"):
            for body, words in (({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": [256]}, "below 256"), ([], "JSON object"),
                                (b"{", "JSON object"), (b'{"prompt":' + b"[" * 2_000_000, "64 levels"),
                                (b'{"prompt":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "64 levels"), ({"prompt": "a", "stream": 1}, "stream"),
                                ({"prompt": "a", "stream": True, "echo": True}, "echo"),
                                ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
                                ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "include_usage"),
                                ({"prompt": "a", "tools": []}, "tools"),
                                ({"prompt": "a", "max_tokens": CONTEXT}, "--context"), ({"prompt": "a", "top_p": 2}, "top_p"),
                                ({"prompt": "a", "n": 1.5}, "n: "), ({"prompt": "a", "stop": [""]}, "stop"),
                                ({"prompt": "a", "logit_bias": {"256": 5}}, "below 256"), ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"),
                                ({"prompt": "a", "presence_penalty": 3}, "presence_penalty")):
                code, answer = self.ask(body)
                self.assertEqual((code, answer["error"]["type"]), (400, "invalid_request_error"), body)
                self.assertIn(words, answer["error"]["message"])
            self.assertEqual(self.ask({}, "/v1/embeddings")[0], 404)
            code, answer = self.ask({"messages": [{"role": "user", "content": "a"}]}, "/v1/chat/completions")
            self.assertEqual(code, 400)
            self.assertIn("--chat-template", answer["error"]["message"])
            self.assertEqual(self.ask(None)[0], 405)
            self.refused(self.terrace("serve", checkpoint, "--listen", "0.0.0.0:0", code=INVALID_INPUT), "--listen", "--insecure")

        with self.subTest("it ends with what is being asked"):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(self.ask, {"prompt": ["a"] * 100, "n": 40, "max_tokens": 60})  # takes ten seconds and more
                time.sleep(1)  # until the server has it
                server.signal(signal.SIGTERM)
                ended = server.wait(10)
                self.assertEqual(ended.code, OK, str(ended))
                self.assertEqual((asked.result()[0], asked.result()[1]["error"]["type"]), (503, "server_error"))

    def test_chats_are_answered_by_the_template_of_the_job(self):
        rows = [{"messages": [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": f"{word} it is"}]}
                for word in ("yes", "no", "so") for _ in range(40)]
        train = self.write("chats.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        job = self.job({"model.config": LLAMA, "data.train": str(train), "data.samples": "documents", "data.sequence_length": 32,
                        "data.chat_template": str(self.write("turns.jinja", TURNS)), "data.validation_fraction": 0.1,
                        "train.steps": 150, "train.global_batch": 16, "train.optimizer.lr": 1e-2})
        checkpoint = self.train(job).done["checkpoint"]
        words = ("yes", "no")
        asked = [option for word in words for option in ("--prompt", f"say {word}")]
        greedy = ("--chat", "--temperature", 0, "--stop", ";")
        texts = self.terrace("generate", checkpoint, *asked, *greedy, "-o", "json").json()["texts"]
        self.assertEqual([text["text"] for text in texts], [f"{word} it is" for word in words])
        self.assertEqual([text["prompt_tokens"] for text in texts], [len(f"u:say {word};a:") for word in words])
        self.assertEqual(self.terrace("generate", checkpoint, *asked[:2], *greedy).out, "yes it is\n", "the answer alone")

        server = self.serve(checkpoint)
        for word in words:
            code, answer = self.ask({"messages": [{"role": "user", "content": f"say {word}"}], "temperature": 0, "stop": ";"},
                                    "/v1/chat/completions")
            self.assertEqual(code, 200, answer)
            choice, = answer["choices"]
            self.assertEqual(choice["message"], {"role": "assistant", "content": f"{word} it is"})
            self.assertEqual((choice["finish_reason"], answer["object"]), ("stop", "chat.completion"))
        asked = {"messages": [{"role": "user", "content": "say no"}], "stop": ";", "logprobs": True, "top_logprobs": 2}
        code, whole = self.ask({"temperature": 0, **asked}, "/v1/chat/completions")
        scores = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(token["token"] for token in scores), "no it is;")
        for token in scores:
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])
            self.assertEqual(token["top_logprobs"][0], {key: token[key] for key in ("token", "logprob", "bytes")}, "the likeliest was taken")
            self.assertEqual(len(token["top_logprobs"]), 2)
        parts = [part["choices"][0] for part in self.parts(asked, "/v1/chat/completions")]
        self.assertEqual(parts[0]["delta"]["role"], "assistant")
        self.assertEqual("".join(part["delta"]["content"] for part in parts), "no it is")
        self.assertEqual(sum((part["logprobs"]["content"] for part in parts), []), scores)
        self.assertEqual((parts[-1]["finish_reason"], parts[0]["finish_reason"]), ("stop", None))
        for body, words in (({}, "messages"), ({"messages": []}, "at least one message"), ({"messages": [{"role": "x", "content": "a"}]}, "role"),
                            ({"messages": [{"role": "user", "content": "a"}], "logprobs": 1}, "logprobs"),
                            ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}, "logprobs: true"),
                            ({"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 21}, "0 to 20"),
                            ({"messages": [{"role": "user", "content": "a" * 40}]}, "context")):
            code, answer = self.ask(body, "/v1/chat/completions")
            self.assertEqual(code, 400, body)
            self.assertIn(words, answer["error"]["message"])
        server.end()
        plain = self.train(self.job({"model.config": LLAMA, "train.steps": 2}, name="plain.yaml")).done["checkpoint"]
        refused = self.terrace("generate", plain, "--prompt", "a", "--chat", code=INVALID_INPUT)
        self.refused(refused, "--chat", "no chat template", "--chat-template")


if __name__ == "__main__":
    unittest.main(verbosity=2)
