#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace run` from the first line to the last, and the commands that work without a coordinator."""
import fcntl
import hashlib
import json
import os
import pty
import shutil
import signal
import struct
import termios
import time
import unittest

from support import (BIN, FAILURE, GPT, INTERRUPTED, INVALID_INPUT, LLAMA, NOT_FOUND, QWEN3, USAGE, TerraceTest,
                     learnable_text, processes)

UNTRAINED_LOSS = 5.5  # nats a byte of a model that knows nothing: ln 256
STEP_KEYS = {"event", "step", "loss", "grad_norm", "tokens_per_second", "step_seconds", "learning_rate", "tokens", "skipped"}


class RunTest(TerraceTest):
    def test_prints_the_documented_lines_and_learns(self):
        job = self.job({"train.steps": 60, "train.eval_every_steps": 30, "checkpoint.every_steps": 30})
        result = self.train(job)

        for line in result.out.splitlines():
            self.assertIn("event", json.loads(line))
        plan = result.events("plan")[0]["plan"]
        self.assertEqual(plan["layout"]["ranks"], 1)
        self.assertEqual(len(plan["program_sha256"]), 1)

        steps = result.events("step")
        self.assertEqual([event["step"] for event in steps], list(range(1, 61)))
        for event in steps:
            self.assertEqual(set(event), STEP_KEYS)
            self.assertGreater(event["tokens_per_second"], 0)
            self.assertGreater(event["grad_norm"], 0)
        self.assertAlmostEqual(steps[0]["loss"], UNTRAINED_LOSS, delta=0.2)
        self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 2)
        self.assertEqual(steps[-1]["tokens"], 60 * 8 * 32)

        evaluations = result.events("eval")
        self.assertEqual([event["step"] for event in evaluations], [30, 60])
        self.assertLess(evaluations[1]["loss"], evaluations[0]["loss"])
        self.assertEqual([event["step"] for event in result.events("checkpoint")], [30, 60])
        states = [event["state"] for event in result.events("state")]
        self.assertEqual(states[-1], "SUCCEEDED")
        self.assertLess(states.index("STARTING"), states.index("RUNNING"))

        self.assertEqual(result.events()[-1]["event"], "done")
        self.assertEqual(result.done["state"], "SUCCEEDED")
        self.assertEqual(result.done["step"], 60)
        self.assertEqual(result.done["checkpoint"], str(self.checkpoints(job)[-1]))
        verified = self.terrace("ckpt", "verify", result.done["checkpoint"], "-o", "json").json()
        self.assertEqual([item["intact"] for item in verified["checkpoints"]], [True])

    def test_shows_plan_progress_and_what_to_do_next_to_people(self):
        job = self.job({"train.steps": 20})
        result = self.terrace("run", job)
        checkpoint = str(self.checkpoints(job)[-1])
        for words in ("SUCCEEDED", "validation loss", "checkpoint", checkpoint, "terrace generate", "terrace ckpt export"):
            self.assertIn(words, result.out)
        self.assertNotIn("\x1b", result.out, "no colours or bars where there is no terminal")

    def test_draws_in_place_on_a_terminal(self):
        terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        running = self.run_command([BIN / "terrace", "run", self.job({"train.steps": 150})], stdout=theirs)
        os.close(theirs)
        text = b""
        try:
            while part := os.read(terminal, 4096):
                text += part
        except OSError:
            pass  # how a pseudo-terminal says that all of its users have gone
        os.close(terminal)
        self.assertEqual(running.wait().code, 0)
        lines = text.decode().replace("\r", "").split("\n")
        for words in ("150/150", "ETA", "grad norm", "tokens/s", "a step", "memory  "):
            self.assertTrue(any(words in line for line in lines), words)
        drawn = [line for line in lines if line.startswith(("step  ", "loss  ", "speed ", "memory "))]
        self.assertLessEqual(max(map(len, drawn)), 90)
        self.assertIn(b"\x1b[J", text, "blocks are drawn over")

    def test_death_of_a_local_daemon_ends_the_run(self):
        for daemon in ("worker", "coordinator"):
            with self.subTest(daemon):
                running = self.start("run", self.job({"train.steps": 100_000, "checkpoint.every_steps": 20}), "-o", "json")
                running.wait_for(lambda event: event["event"] == "checkpoint")
                victims = [pid for pid, command in processes(self.mark).items() if f"terrace-{daemon}" in command]
                os.kill(min(victims), signal.SIGKILL)  # the oldest: a coordinator has planner processes
                result = running.wait()
                self.assertEqual(result.code, FAILURE, str(result))
                self.refused(result, f"the local {daemon} ended with status 137", ".log")
                self.assertEqual(self.wait_until_nothing_runs(5), {})

    def test_local_coordinator_whose_end_is_seen_late_is_named(self):
        # Its connections close half a second before its parent learns of its end.
        programs = self.folder / "bin"
        programs.mkdir()
        for program in BIN.iterdir():
            (programs / program.name).symlink_to(program)
        for name in ("terrace", "terrace-coordinator"):
            (programs / name).unlink()
        shutil.copy(BIN / "terrace", programs / "terrace")  # which looks for the others beside itself
        late = programs / "terrace-coordinator"
        late.write_text(f'#!/bin/sh\n"{BIN}/terrace-coordinator" "$@"\nstatus=$?\nsleep 0.5\nexit $status\n')
        late.chmod(0o755)

        job = self.job({"train.steps": 100_000, "checkpoint.every_steps": 20})
        running = self.run_command([programs / "terrace", "run", job, "-o", "json"])
        running.wait_for(lambda event: event["event"] == "checkpoint")
        victims = [pid for pid, command in processes(self.mark).items()
                   if " serve " in command and os.readlink(f"/proc/{pid}/exe") == str((BIN / "terrace-coordinator").resolve())]
        self.assertEqual(len(victims), 1)
        os.kill(victims[0], signal.SIGKILL)
        result = running.wait()
        self.assertEqual(result.code, FAILURE, str(result))
        self.refused(result, "the local coordinator ended with status 137", "coordinator.log")
        self.assertEqual(self.wait_until_nothing_runs(5), {})

    def test_second_interrupt_stops_at_once(self):
        job = self.job({"train.steps": 100_000})
        running = self.start("run", job, "-o", "json")
        running.wait_for_step(5)
        for ranks in (self.rank_pids(), []):
            for pid in ranks:
                os.kill(pid, signal.SIGSTOP)  # a step that does not end
            running.signal(signal.SIGINT)
            time.sleep(0.5)
        result = running.wait(10)
        self.assertEqual(result.code, INTERRUPTED, str(result))
        self.refused(result, "stopping at once")
        self.assertEqual(self.wait_until_nothing_runs(5), {})
        self.assertEqual(self.checkpoints(job), [])

    def test_trains_every_family_in_both_precisions(self):
        for config in (GPT, LLAMA, QWEN3):
            for precision in ("fp32", "bf16"):
                with self.subTest(family=config["model_type"], precision=precision):
                    result = self.train(self.job({"model.config": config, "train.precision": precision, "train.steps": 25}))
                    self.assertLess(result.events("step")[-1]["loss"], UNTRAINED_LOSS - 1)

    def test_finished_job_stays_finished(self):
        job = self.job({"train.steps": 10})
        self.train(job)
        before = self.digest(job)
        again = self.train(job)
        self.assertEqual(again.done["state"], "SUCCEEDED")
        self.assertEqual(again.events("step"), [])
        self.assertEqual(again.done["step"], 10)
        self.assertEqual((again.done["loss"], again.done["eval_loss"]), (None, None), "no step was done that had one")
        self.assertEqual(again.done["checkpoint"], str(self.checkpoints(job)[-1]))
        self.assertIn("nothing was left to do: step 10 was reached before", self.terrace("run", job).out)
        self.assertEqual(self.digest(job), before)

    def digest(self, job):
        files = sorted(path for path in job.parent.glob("checkpoints/*/*") if path.is_file())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class TrainedTest(TerraceTest):
    """What one does with a trained model; it is trained once for all."""

    def trained(self):
        job = self.job({"train.steps": 300, "checkpoint.every_steps": 150})
        return job, self.train(job).done["checkpoint"]

    def test_lists_verifies_generates_and_exports(self):
        job, checkpoint = self.trained()
        with self.subTest("ckpt ls"):
            listed = self.terrace("ckpt", "ls", job.parent / "checkpoints", "-o", "json").json()["checkpoints"]
            self.assertEqual([int(item["step"]) for item in listed], [150, 300])
            self.assertTrue(all(item["complete"] for item in listed))
            table = self.terrace("ckpt", "ls", job.parent / "checkpoints").out
            self.assertIn("STEP", table)
            self.assertIn(checkpoint, table)
        with self.subTest("generate"):
            ask = ("generate", checkpoint, "--prompt", "the king", "--tokens", 80, "--seed", 5, "--temperature", 0.8)
            first, second = (self.terrace(*ask).out for _ in range(2))
            self.assertEqual(first, second, "one seed, one text")
            self.assertEqual(len(first.encode(errors="surrogateescape")), len("the king") + 80 + 1)
            self.assertNotEqual(first, self.terrace(*ask[:-3], 6, *ask[-2:]).out, "another seed, another text")
            answer = self.terrace(*ask, "-o", "json").json()
            self.assertEqual(answer["tokens"], 80)
            self.assertEqual("the king" + answer["text"] + "\n", first)
            likeliest = self.terrace("generate", checkpoint, "--prompt", "the k", "--tokens", 20, "--temperature", 0).out
            self.assertIn("the king", likeliest, "it has learned the words")
        with self.subTest("export"):
            target = self.folder / "exported"
            exported = self.terrace("ckpt", "export", checkpoint, "--output", target, "--dtype", "bf16", "-o", "json").json()
            self.assertEqual(exported["dtype"], "bf16")
            self.assertEqual(json.loads((target / "config.json").read_text())["model_type"], "gpt2")
            self.assertTrue((target / "model.safetensors").exists())
            again = self.terrace("ckpt", "export", checkpoint, "--output", target, code=INVALID_INPUT)
            self.refused(again, str(target), "exists", "choose another folder")
        with self.subTest("damage is found"):
            weights = job.parent / "checkpoints/step-00000150/model.safetensors"
            content = bytearray(weights.read_bytes())
            content[-5] ^= 1
            weights.write_bytes(content)
            result = self.terrace("ckpt", "verify", weights.parent, code=INVALID_INPUT)
            self.refused(result, "model.safetensors", "damaged", "sum64", "ckpt ls")
        with self.subTest("what is not there"):
            self.terrace("ckpt", "verify", self.folder / "nowhere", code=NOT_FOUND)
            self.terrace("ckpt", "ls", self.folder / "nowhere", code=NOT_FOUND)
            self.refused(self.terrace("generate", self.folder / "nowhere", "--prompt", "x", code=NOT_FOUND), "nowhere")


class OfflineTest(TerraceTest):
    def test_plans_without_a_coordinator(self):
        job = self.job()
        plan = self.terrace("plan", job, "-o", "json").json()
        self.assertEqual(int(plan["model"]["parameters"]), 256 * 32 + 64 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32)
        memory = plan["memory"][0]
        total = sum(int(line["bytes"]) for line in memory["lines"])
        self.assertEqual(total, int(memory["arena_bytes"]) + int(memory["external_bytes"]))
        self.assertGreaterEqual(int(memory["arena_bytes"]), int(memory["lower_bound_bytes"]))
        self.assertGreater(plan["time"]["step_seconds"], 0)
        table = self.terrace("plan", job).out
        self.assertIn("arena", table.lower())

    def test_explains_the_program(self):
        job = self.job()
        text = self.terrace("explain", job).out
        only_eval = self.terrace("explain", job, "--sequence", "eval").out
        self.assertIn("adamw", text.lower())
        self.assertNotIn("adamw", only_eval.lower())
        (program,) = self.terrace("explain", job, "-o", "json").json()["programs"]
        self.assertIn("train", [sequence["name"] for sequence in program["sequences"]])
        self.assertEqual(text, self.terrace("explain", job).out, "the same spec compiles to the same program")

    def test_prints_completions_and_the_schema(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.terrace("completion", shell).out
            for word in ("submit", "generate", "ckpt"):
                self.assertIn(word, script)
        schema = self.terrace("schema", program="terrace-coordinator").json()
        self.assertEqual(set(schema["required"]), {"name", "model", "data", "train"})
        self.assertIn("gpt-bytes-10m", self.terrace("presets", program="terrace-coordinator").out)

    def test_wrong_command_lines_are_usage_errors(self):
        for arguments in ((), ("nonsense",), ("run",), ("plan", "a.yaml", "-o", "xml"), ("completion", "tcsh")):
            with self.subTest(arguments=arguments):
                self.terrace(*arguments, code=USAGE)
        self.assertIn("Exit codes", self.terrace("--help").out)
        self.assertRegex(self.terrace("--version").out, r"terrace \d+\.\d+")

    def test_tokens_go_there_and_back(self):
        text = learnable_text(20_000)
        source, target = self.write("words.txt", text), self.folder / "words.bin"
        result = self.terrace("tokenize", "--tokenizer", "bytes", "--output", target, source, "-o", "json").json()
        self.assertEqual(int(result["tokens"]), len(text))
        header, body = target.read_bytes()[:1024], target.read_bytes()[1024:]
        self.assertEqual(int.from_bytes(header[8:12], "little"), len(text))
        self.assertEqual(bytes(body[::2]).decode(), text)
        job = self.job({"data.train": str(target), "train.steps": 5})
        direct = self.job({"data.train": str(source), "train.steps": 5})
        self.assertEqual(self.train(job).losses, self.train(direct).losses)


if __name__ == "__main__":
    unittest.main(verbosity=2)
