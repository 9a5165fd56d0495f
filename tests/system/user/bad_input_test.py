#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong specs, models, data and weights: each is refused with the exit code of its kind and a message that names the field,
the file, the number and the way out; nothing is left running, and what was there before is unharmed."""
import json
import os
import pathlib
import re
import struct
import unittest

from support import BIN, GPT, INVALID_INPUT, LLAMA, NOT_FOUND, OK, RESOURCES, TerraceTest


def read_safetensors(path):
    """name -> {dtype, shape, data}."""
    content = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8:8 + length]), content[8 + length:]
    header.pop("__metadata__", None)
    return {name: {**info, "data": body[slice(*info["data_offsets"])]} for name, info in header.items()}


def safetensors(tensors):
    header, body = {}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor["dtype"], "shape": tensor["shape"],
                        "data_offsets": [len(body), len(body) + len(tensor["data"])]}
        body += tensor["data"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


class RefusedTest(TerraceTest):
    def run_refused(self, job, code, *words):
        result = self.train(job, code=code)
        self.refused(result, *words)
        self.assertEqual(result.events("step"), [])
        return result


class SpecTest(RefusedTest):
    def test_missing_and_unreadable_files(self):
        for path in (self.folder / "nothing.yaml", self.folder):
            for command in ("run", "plan", "submit"):
                with self.subTest(command=command, path=path):
                    self.refused(self.terrace(command, path, code=NOT_FOUND), str(path), "yaml")

    def test_malformed_yaml(self):
        for text in ("name: [a, b\nmodel: x\n", "name: a\n  model: {config: gpt2}\n", "- a\n- b\n", "", "\0\1\2"):
            with self.subTest(text=text):
                self.run_refused(self.write("bad/job.yaml", text), INVALID_INPUT, "line", "column")

    def test_all_problems_are_told_at_once_with_their_place(self):
        text = ("name: tiny\n"
                "model: {config: gpt-bytes-10m}\n"
                "data: {train: corpus.txt, sequence_lenght: 32}\n"
                "train:\n"
                "  steps: many\n"
                "  global_batch: 0\n"
                "  optimizer: {lr: -1}\n"
                "  precision: fp64\n"
                "  clip_grad_nrom: 1\n"
                "steps: 5\n")
        job = self.write("bad/job.yaml", text)
        self.run_refused(job, INVALID_INPUT,
                         "line 3, column 27: data.sequence_lenght", "try data.sequence_length",
                         'train.steps: got "many", must be a whole number',
                         'train.global_batch: got "0"', "from 1 to", 'train.optimizer.lr: got "-1"',
                         'train.precision: got "fp64"', "fp32", "train.clip_grad_nrom", "try train.clip_grad_norm",
                         "line 10, column 1: steps", "try train.steps")
        self.refused(self.terrace("plan", job, code=INVALID_INPUT), "train.global_batch", "line 6")

    def test_required_keys(self):
        self.run_refused(self.write("bad/job.yaml", "name: tiny\n"), INVALID_INPUT, "model.config", "data.train", "train.steps")

    def test_error_is_an_object_where_json_is_asked_for(self):
        for command in ("run", "plan"):
            result = self.terrace(command, self.job({"train.steps": -5}), "-o", "json", code=INVALID_INPUT)
            message = json.loads(result.out)
            self.assertIn("train.steps", json.dumps(message))

    def test_batch_that_the_ranks_cannot_share(self):
        job = self.job({"train.global_batch": 7, "resources.devices_per_node": 2, "layout.dp": 2})
        self.run_refused(job, INVALID_INPUT, "train.global_batch", "7", "2")


class ModelTest(RefusedTest):
    def test_config_files(self):
        cases = {"missing": (None, ("model.config", "missing.json")),
                 "malformed": ("{\"model_type\": ", ("config.json", "json")),
                 "list": ("[]", ("object",)),
                 "architecture": (json.dumps({**GPT, "model_type": "mamba"}), ("mamba", "gpt2", "llama", "qwen3")),
                 "incomplete": (json.dumps({key: value for key, value in LLAMA.items() if key != "hidden_size"}), ("hidden_size",)),
                 "heads": (json.dumps({**GPT, "n_head": 5}), ("n_head", "5", "32")),
                 "negative": (json.dumps({**GPT, "n_layer": -2}), ("n_layer", "-2"))}
        for name, (text, words) in cases.items():
            with self.subTest(name):
                job = self.job({"model.config": f"./{name}.json" if text is None else "./config.json"})
                if text is not None:
                    (job.parent / "config.json").write_text(text)
                self.run_refused(job, INVALID_INPUT, *words)

    def test_unknown_preset_names_the_nearest(self):
        self.run_refused(self.job({"model.config": "gpt-byte-10m"}), INVALID_INPUT, "gpt-byte-10m", "gpt-bytes-10m")

    def test_sequence_longer_than_the_model_can_see(self):
        self.run_refused(self.job({"data.sequence_length": 65}), INVALID_INPUT, "data.sequence_length", "65", "64")


class DataTest(RefusedTest):
    def token_file(self, name, ids):
        return str(self.write(name, struct.pack(f"<{len(ids)}H", *ids)))

    def test_missing_file(self):
        self.run_refused(self.job({"data.train": "nowhere.txt"}), INVALID_INPUT, "data.train", "nowhere.txt")

    def test_missing_validation_file(self):
        self.run_refused(self.job({"data.validation": "nowhere.txt"}), INVALID_INPUT, "data.validation", "nowhere.txt")

    def test_unknown_kind_of_file(self):
        self.write("corpus.pdf", "text")
        self.run_refused(self.job({"data.train": "../corpus.pdf"}), INVALID_INPUT, "corpus.pdf", ".txt", ".jsonl", ".bin")

    def test_token_beyond_the_vocabulary(self):
        ids = [7] * 20000 + [300] + [7] * 5000
        job = self.job({"data.train": self.token_file("tokens.bin", ids)})
        self.run_refused(job, INVALID_INPUT, "tokens.bin", "300", "256", "20000", "rank 0")

    def test_what_a_token_files_beginning_and_size_show_is_refused_before_planning(self):
        wide = {"model.config": {**GPT, "vocab_size": 70000}, "data.train": self.token_file("narrow.bin", [50000] * 100)}
        self.refused(self.terrace("plan", self.job(wide), code=INVALID_INPUT), "data.train: ", "narrow.bin", "read as uint32",
                     "write it as uint32")
        header = struct.pack("<256i", 20240520, 1, 101, *[0] * 253)
        self.write("cut.bin", header + struct.pack("<100H", *[7] * 100))
        self.refused(self.terrace("plan", self.job({"data.train": "../cut.bin"}), code=INVALID_INPUT), "cut.bin",
                     "announces 101 tokens", "cut off")

    def test_data_shorter_than_a_sequence(self):
        self.write("short.txt", "too short")
        self.run_refused(self.job({"data.train": "../short.txt"}), INVALID_INPUT, "data.train", "sequence_length", "32", "33")

    def test_empty_file(self):
        self.write("empty.txt", "")
        self.run_refused(self.job({"data.train": "../empty.txt"}), INVALID_INPUT, "data.train has 0 tokens", "at least 33")

    def test_broken_line_of_jsonl(self):
        self.write("broken.jsonl", '{"text": "one"}\n{"text": \n')
        self.run_refused(self.job({"data.train": "../broken.jsonl"}), INVALID_INPUT, "broken.jsonl:2", "each line must be")

    def test_missing_tokenizer(self):
        self.run_refused(self.job({"data.tokenizer": "./tokenizer.json"}), INVALID_INPUT, "data.tokenizer", "tokenizer.json")


class WeightsTest(RefusedTest):
    def test_weights_that_are_not_those_of_the_model(self):
        good = self.train(self.job({"train.steps": 1})).done["checkpoint"] + "/model.safetensors"
        content, tensors = pathlib.Path(good).read_bytes(), read_safetensors(good)
        name = "transformer.h.1.mlp.c_fc.weight"
        fewer = {key: value for key, value in tensors.items() if key != name}
        turned = {**tensors, name: {**tensors[name], "shape": tensors[name]["shape"][::-1]}}
        header = struct.unpack("<Q", content[:8])[0]
        cases = {"truncated": (content[:-1000], ("bytes",)),
                 "cut in the header": (content[:header // 2], ("header",)),
                 "no safetensors": (b"PK\3\4" + bytes(100), ("header",)),
                 "header of too many bytes": (struct.pack("<Q", 1 << 60) + content[8:], ("header",)),
                 "missing tensor": (safetensors(fewer), (name,)),
                 "wrong shape": (safetensors(turned), (name, "32", "128"))}
        for case, (wrong, words) in cases.items():
            with self.subTest(case):
                path = self.write(f"{case.replace(' ', '-')}.safetensors", wrong)
                self.run_refused(self.job({"model.init": str(path)}), INVALID_INPUT, path.name, *words)
        with self.subTest("missing file"):
            self.run_refused(self.job({"model.init": "./nowhere.safetensors"}), INVALID_INPUT, "nowhere.safetensors")
        with self.subTest("the right ones are taken"):
            result = self.train(self.job({"model.init": good, "train.steps": 1}))
            self.assertNotEqual(result.losses, {})

    def test_weights_that_are_left_are_told(self):
        good = self.train(self.job({"train.steps": 1})).done["checkpoint"] + "/model.safetensors"
        small = {"model.init": good, "model.config": {**GPT, "n_layer": 1}, "train.steps": 1}
        warning, = (event["text"] for event in self.train(self.job(small)).events("warning"))
        for word in ("12 tensors of", "transformer.h.1.", "not in the model", "the model has fewer layers than these weights"):
            self.assertIn(word, warning)

    def test_a_chat_template_that_no_checkpoint_can_have_is_told(self):
        job = self.job({"train.steps": 1, "data.chat_template": "./nowhere.jinja"})
        warning, = (event["text"] for event in self.train(job).events("warning"))
        self.assertIn("what is saved has no chat_template.jinja: cannot open", warning)

    def test_checkpoint_of_another_model(self):
        job = self.job({"train.steps": 4}, name="first")
        self.train(job)
        files = {path: path.read_bytes() for path in job.parent.glob("checkpoints/*/*")}
        other = self.job({"train.steps": 8, "model.config": {**GPT, "n_embd": 64},
                          "checkpoint.directory": str(job.parent / "checkpoints")})
        self.run_refused(other, INVALID_INPUT, "cannot resume", "32", "64", str(job.parent / "checkpoints"), "another checkpoint.directory")
        self.assertEqual({path: path.read_bytes() for path in job.parent.glob("checkpoints/*/*")}, files)

    def test_new_start_in_a_directory_with_checkpoints(self):
        job = self.job({"train.steps": 4})
        self.train(job)
        files = {path: path.read_bytes() for path in job.parent.glob("checkpoints/*/*")}
        again = self.job({"train.steps": 4, "checkpoint.resume": "never", "checkpoint.directory": str(job.parent / "checkpoints")})
        self.run_refused(again, RESOURCES, "checkpoint.resume: got never", "step 4", "another checkpoint.directory", "auto")
        self.assertEqual({path: path.read_bytes() for path in job.parent.glob("checkpoints/*/*")}, files)

    def test_damaged_checkpoint_is_passed_over(self):
        job = self.job({"train.steps": 20, "checkpoint.every_steps": 10})
        whole = self.train(job)
        manifest = self.checkpoints(job)[-1] / "manifest.json"
        manifest.write_text(manifest.read_text()[:-20])
        result = self.train(job)
        self.assertEqual(result.losses, {step: whole.losses[step] for step in range(11, 21)})


class FifoTest(RefusedTest):
    """To open one as a file would wait for a writer, for ever: at submission, or in a rank where only that sees it."""

    def fifo(self, name):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return path

    def refused_at_once(self, changes, *words):
        result = self.train(self.job(changes), code=INVALID_INPUT, seconds=30)
        self.refused(result, "it is a FIFO, must be a regular file", *words)
        self.assertEqual(result.events("step"), [])
        self.assertNotIn("restart", result.err)
        return result

    def test_at_submission(self):
        for key, name in (("model.config", "config.json"), ("data.train", "corpus-0.txt"), ("data.validation", "more.txt"),
                          ("data.tokenizer", "tokenizer.json"), ("data.chat_template", "chat.jinja"), ("model.init", "model.safetensors")):
            with self.subTest(key):
                fifo = self.fifo(f"inputs/{name}")
                self.refused_at_once({key: str(fifo)}, key, str(fifo))
        with self.subTest("a folder of weights"):
            self.refused_at_once({"model.init": str(self.folder / "inputs")}, "model.init", "inputs/model.safetensors")

    def test_in_a_rank(self):
        with self.subTest("the tokens beside an index"):
            self.write("indexed.idx", b"MMIDIDX")
            fifo = self.fifo("indexed.bin")
            self.refused_at_once({"data.train": str(self.folder / "indexed.idx")}, "data.train", str(fifo))
        with self.subTest("a shard of the weights"):
            fifo = self.fifo("weights/one.safetensors")
            self.write("weights/model.safetensors.index.json", json.dumps({"weight_map": {"wte": fifo.name}}))
            self.refused_at_once({"model.init": str(fifo.parent)}, "model.init", str(fifo))

    def test_files_of_a_checkpoint(self):
        for name in ("manifest.json", "model.safetensors"):
            with self.subTest(name):
                job = self.job({"train.steps": 20, "checkpoint.every_steps": 10})
                whole = self.train(job)
                file = self.checkpoints(job)[-1] / name
                file.unlink()
                os.mkfifo(file)
                result = self.train(job, seconds=30)
                self.assertEqual(result.losses, {step: whole.losses[step] for step in range(11, 21)})

    def test_a_spec_may_come_through_a_pipe_and_its_inputs_may_not(self):
        job = self.job()
        terrace = f"cd {job.parent} && cat job.yaml | {BIN / 'terrace'}"
        planned = self.run_command(["sh", "-c", f"{terrace} plan -"]).wait()
        self.assertEqual(planned.code, OK, str(planned))
        self.assertIn(f"plan {job.parent.name}", planned.out)
        trained = self.run_command(["sh", "-c", f"{terrace} run - -o json"]).wait()
        self.assertEqual(trained.code, OK, str(trained))
        self.assertEqual(len(trained.losses), 30)
        self.assertEqual(len(self.checkpoints(job)), 1, "paths start where the command was typed")

    def test_tools(self):
        fifo = str(self.fifo("any.json"))
        for command in (("plan", fifo), ("submit", fifo), ("run", fifo), ("estimate", fifo), ("import", "deepspeed", fifo), ("ckpt", "verify", fifo),
                        ("tokenize", "--tokenizer", fifo, "--output", str(self.folder / "tokens.bin"), fifo)):
            with self.subTest(command[0]):
                self.refused(self.terrace(*command, code=None, seconds=30), fifo)


class MemoryBudgetTest(RefusedTest):
    def test_refused_before_launch_with_the_cheapest_change_that_fits(self):
        wide = {**GPT, "n_embd": 128, "n_layer": 4, "n_positions": 256}
        changes = {"model.config": wide, "data.sequence_length": 256, "train.global_batch": 16, "train.steps": 2,
                   "layout.micro_batch": 16, "layout.recompute": "none"}  # pinned: the planner would recompute
        needed = self.bytes_of_plan(changes)
        smaller = self.bytes_of_plan({**changes, "layout.micro_batch": 8})
        budget = (needed + smaller) // 2
        job = self.job({**changes, "resources.device_memory": budget})
        self.refused(self.terrace("plan", job, code=RESOURCES), str(needed))
        result = self.run_refused(job, RESOURCES,
                                  str(needed), "resources.device_memory of at least")
        self.assertEqual(result.events("plan"), [], "refused before anything was launched")

        advice = re.search(r"cheapest change that fits: (.*?) \(", result.err).group(1)
        advised = dict(part.split(" ") for part in advice.split(" with "))
        self.assertTrue(advised)
        self.train(self.job({**changes, "resources.device_memory": budget,
                             **{key: int(value) if value.isdigit() else value for key, value in advised.items()}}))
        enough = re.search(r"device_memory of at least (\d+) MiB", result.err).group(1)
        self.train(self.job({**changes, "resources.device_memory": f"{enough}MiB"}))

    def bytes_of_plan(self, changes):
        memory = self.terrace("plan", self.job(changes), "-o", "json").json()["memory"][0]
        return int(memory["arena_bytes"]) + int(memory["external_bytes"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
