#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The corners of ordinary use: odd paths, early interrupts, closed pipes and full disks behind them, odd numbers, losses that
are no number, another layout on resuming."""
import os
import pty
import shutil
import signal
import subprocess
import unittest

from support import BIN, CANCELLED, FAILURE, GPT, INTERRUPTED, INVALID_INPUT, NOT_FOUND, OK, USAGE, TerraceTest, learnable_text


class PathTest(TerraceTest):
    def test_paths_with_spaces_quotes_and_letters_of_all_kinds(self):
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder = self.folder / "it's a \"größe\" $HOME"
        self.folder.mkdir()
        job = self.job({"train.steps": 5})
        result = self.terrace("run", job, "--state-dir", self.folder / "my state", "-o", "json")
        self.assertEqual(result.done["checkpoint"], str(self.checkpoints(job)[-1]))
        self.assertEqual(result.done["logs"], str(self.folder / "my state"))
        self.assertEqual(self.terrace("ckpt", "ls", job.parent / "checkpoints", "-o", "json").json()["checkpoints"][0]["path"],
                         result.done["checkpoint"])
        self.terrace("generate", result.done["checkpoint"], "--prompt", "é", "--tokens", 4)
        self.terrace("plan", job)

    def test_paths_start_from_the_folder_of_the_spec(self):
        job = self.job({"train.steps": 5, "checkpoint.directory": None})
        before = os.getcwd()
        os.chdir(job.parent)
        try:
            result = self.train("job.yaml")
        finally:
            os.chdir(before)
        self.assertEqual(result.done["checkpoint"], str(job.parent / "checkpoints/tiny-1/step-00000005"))

    def test_state_that_cannot_be_kept(self):
        self.write("occupied", "")
        result = self.terrace("run", self.job(), "--state-dir", self.folder / "occupied/state", code=None)
        self.assertNotEqual(result.code, OK)
        self.refused(result, "occupied", "--state-dir")


class InterruptTest(TerraceTest):
    def test_interrupt_before_the_first_step(self):
        self.write("large.txt", learnable_text(30_000_000))
        job = self.job({"data.train": "../large.txt", "train.steps": 100_000})
        running = self.start("run", job, "-o", "json")
        running.wait_for(lambda event: event["event"] == "plan")
        running.signal(signal.SIGINT)
        result = running.wait()
        self.assertIn(result.code, (INTERRUPTED, CANCELLED), str(result))
        self.assertEqual(result.done["state"], "CANCELLED")
        self.assertEqual(self.wait_until_nothing_runs(5), {})

    def test_kill_before_the_first_step(self):
        running = self.start("run", self.job({"train.steps": 100_000}), "-o", "json")
        running.wait_for(lambda event: event.get("state") == "STARTING")
        running.signal(signal.SIGKILL)
        running.wait()
        self.assertEqual(self.wait_until_nothing_runs(5), {})

    def test_reader_that_goes_away(self):
        process = subprocess.Popen([str(BIN / "terrace"), "run", str(self.job({"train.steps": 100_000})), "-o", "json"],
                                   env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.readline()
        process.stdout.close()
        process.wait(30)
        self.assertEqual(self.wait_until_nothing_runs(5), {})


    def test_a_run_after_one_that_was_killed_in_the_same_folder(self):
        state, job = self.folder / "state-of-both", self.job({"train.steps": 100_000})
        running = self.start("run", job, "--state-dir", state, "-o", "json")
        running.wait_for_step(1)
        running.signal(signal.SIGKILL)
        running.wait()  # and what it had started may still run
        text = job.read_text().replace("100000", "20")
        job.write_text(text)
        result = self.terrace("run", job, "--state-dir", state, "-o", "json")
        self.assertEqual(result.done["state"], "SUCCEEDED")
        self.refused(result, "of an earlier run in this folder had not ended: it is cancelled")


class OutputTest(TerraceTest):
    def printed_into(self, path, *arguments, program="terrace"):
        with open(path, "wb") as file:
            return self.run_command([BIN / program, *arguments], stdout=file).wait()

    def test_what_cannot_be_printed_is_an_error(self):
        job = self.job()
        for program, arguments in (("terrace", ("plan", job)), ("terrace", ("estimate", "gpt2", "-o", "json")), ("terrace", ("--version",)),
                                   ("terrace", ("completion", "bash")), ("terrace", ("tokenize", "--help")),
                                   ("terrace", ("tokenize", "--tokenizer", "bytes", "--output", self.folder / "t.bin", self.folder / "corpus.txt")),
                                   ("terrace-coordinator", ("schema",)), ("terrace-worker", ("metrics",))):
            with self.subTest(program=program, arguments=arguments):
                result = self.printed_into("/dev/full", *arguments, program=program)
                self.assertEqual(result.code, FAILURE, str(result))
                self.refused(result, "cannot write to standard output")
        trained = self.printed_into("/dev/full", "run", job, "-o", "json")
        self.assertEqual(trained.code, FAILURE, str(trained))
        self.assertEqual(len(self.checkpoints(job)), 1, "training itself went on")

    def test_a_file_that_is_asked_for_may_be_a_pipe(self):
        piped = self.run_command(["sh", "-c", f"{BIN / 'terrace'} plan {self.job()} --trace /dev/stdout | head -c 1"]).wait()
        self.assertEqual((piped.code, piped.out), (OK, "{"), str(piped))

    def test_what_is_generated_acts_on_no_terminal(self):
        checkpoint = self.train(self.job({"train.steps": 5})).done["checkpoint"]
        command = ("generate", checkpoint, "--prompt", "a\x1b[2Jb", "--tokens", 8)
        self.assertIn("a\x1b[2Jb", self.terrace(*command).out, "into a pipe it goes as it is")
        terminal, other_end = pty.openpty()
        result = self.run_command([BIN / "terrace", *command], stdout=other_end).wait()
        shown = os.read(terminal, 10_000)
        os.close(terminal)
        os.close(other_end)
        self.assertEqual(result.code, OK, str(result))
        self.assertIn(b"a\\x1b[2Jb", shown)
        self.assertNotIn(b"\x1b", shown)

    def test_whole_numbers_are_decimal_and_none_is_cut(self):
        checkpoint = self.train(self.job({"train.steps": 5})).done["checkpoint"]

        def made(seed):
            return self.terrace("generate", checkpoint, "--prompt", "x", "--tokens", 40, "--seed", seed).out

        self.assertEqual(made("010"), made("10"))
        self.assertNotEqual(made("010"), made("8"))
        self.assertEqual(made("1_0"), made("10"))
        for seed in ("9223372036854775808", "0x10000000000000000"):
            wrong = self.terrace("generate", checkpoint, "--prompt", "x", "--seed", seed, code=USAGE)
            self.refused(wrong, "--seed", f"got {seed}", "to 9223372036854775807")

    def test_ports_of_more_than_16_bits_are_no_other_ports(self):
        for address in ("127.0.0.1:70000", "127.0.0.1", "127.0.0.1:http"):
            with self.subTest(address):
                self.refused(self.terrace("--coordinator", address, "ls", code=INVALID_INPUT), "--coordinator", address, "65535")
                served = self.terrace("serve", "--listen", address, "--state-dir", self.folder / "c", code=INVALID_INPUT,
                                      program="terrace-coordinator")
                self.refused(served, "--listen", address, "65535")
                worker = self.terrace("--coordinator", address, "--state-dir", self.folder / "w", code=INVALID_INPUT,
                                      program="terrace-worker")
                self.refused(worker, "--coordinator", address, "65535")


class TrainingTest(TerraceTest):
    def test_loss_that_is_no_number_stops_the_job_and_says_what_to_do(self):
        job = self.job({"train.optimizer": {"lr": 10, "weight_decay": 10, "betas": [0.0, 0.0]}, "train.clip_grad_norm": 0,
                        "train.steps": 2000})
        result = self.train(job, code=FAILURE)
        self.assertEqual((result.done["state"], result.done["reason"]), ("FAILED", "NON_FINITE_LOSS"))
        self.refused(result, "train.optimizer.lr", "warmup_steps")
        self.assertNotIn("use fp32", result.done["message"], "it does")

    def test_checkpoint_of_one_layout_goes_on_in_another(self):
        changes = {"train.steps": 40, "checkpoint.every_steps": 20, "checkpoint.keep": 0}
        whole = self.train(self.job(changes))
        for first, then in ((1, 2), (2, 1), (4, 2)):
            with self.subTest(first=first, then=then):
                job = self.job({**changes, "train.steps": 40, "resources.devices_per_node": first}, name=f"from-{first}-to-{then}")
                running = self.start("run", job, "-o", "json")
                running.wait_for(lambda event: event["event"] == "checkpoint")
                running.signal(signal.SIGINT)
                running.wait()
                rest = self.train(self.job({**changes, "resources.devices_per_node": then}, name=f"from-{first}-to-{then}"))
                for step, loss in rest.losses.items():
                    self.assertLess(abs(float(loss) - float(whole.losses[step])), 1e-4)
                self.assertEqual(rest.done["state"], "SUCCEEDED")

    def test_sequences_of_any_length_and_batches_of_any_size(self):
        for length, batch in ((1, 1), (7, 3), (64, 2)):
            with self.subTest(length=length, batch=batch):
                result = self.train(self.job({"data.sequence_length": length, "train.global_batch": batch, "train.steps": 5,
                                              "train.precision": "bf16"}))
                self.assertEqual(result.events("step")[-1]["tokens"], 5 * length * batch)

    def test_prompt_longer_than_the_model_sees(self):
        checkpoint = self.train(self.job({"train.steps": 5})).done["checkpoint"]
        made = self.terrace("generate", checkpoint, "--prompt", "the king " * 20, "--tokens", 5).out
        self.assertEqual(len(made.encode(errors="surrogateescape")), 180 + 5 + 1)
        self.assertEqual(GPT["n_positions"], 64)
        self.terrace("generate", self.folder, "--prompt", "x", code=NOT_FOUND)


if __name__ == "__main__":
    unittest.main(verbosity=2)
