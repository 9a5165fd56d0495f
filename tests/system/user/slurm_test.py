#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm/terrace.sbatch on a real Slurm with two nodes: exit codes, preemption and requeue, the time limit, scancel."""
import os
import re
import signal
import unittest

from slurm_cluster import SlurmTest
from support import ROOT, processes

SCRIPT = ROOT / "deploy/slurm/terrace.sbatch"
TWO_NODES = {"resources.nodes": 2}
ENDLESS = {**TWO_NODES, "train.steps": 100_000, "checkpoint.every_steps": 50_000}


class EndTest(SlurmTest):
    def test_a_job_of_two_nodes_ends_with_code_0_and_leaves_only_logs(self):
        path = self.job({**TWO_NODES, "train.steps": 60})
        number = self.sbatch("--nodes=2", SCRIPT, path)
        job = self.wait_for_slurm(number, "COMPLETED", "FAILED")
        log = self.log(number)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), log)
        self.assertIn("runs on 2 nodes (n[1-2])", log)
        self.assertEqual(self.checkpoints(path)[-1].name, "step-00000060", log)
        left = sorted(file.name for file in (self.folder / f"terrace-{number}").iterdir() if file.name.endswith((".log", ".pem", ".key")))
        self.assertEqual(left, ["coordinator.log", "openssl.log", "worker-n1.log", "worker-n2.log"])
        self.assertFalse((self.folder / f"terrace-{number}/tls").exists(), "the attempt's key is removed")
        self.assertEqual(list(self.slurm.glob("terrace-*")), [], "state of the nodes is removed")

    def test_slurm_gets_the_exit_code_of_the_job_and_the_log_its_reason(self):
        cases = ((self.job({"train.steps": 0}), "4:0", "train.steps"),
                 (self.folder / "absent.yaml", "3:0", "absent.yaml is not a readable file"),
                 (self.job({"train.global_batch": 9, "resources.nodes": 3}), "5:0", "the allocation is too small for the job"))
        for path, code, words in cases:
            with self.subTest(words):
                number = self.sbatch("--nodes=2", SCRIPT, path)
                job = self.wait_for_slurm(number, "COMPLETED", "FAILED")
                self.assertEqual((job["JobState"], job["ExitCode"]), ("FAILED", code), self.log(number))
                self.assertIn(words, self.log(number))


class SignalTest(SlurmTest):
    def start_endless(self, *options):
        path = self.job(ENDLESS)
        number = self.sbatch("--nodes=2", *options, SCRIPT, path)
        self.wait_until(lambda: re.search(r"step +\d+", self.log(number)), f"job {number} trains", seconds=120)
        self.assertEqual(self.checkpoints(path), [])
        return path, number

    def wait_for_checkpoint_in_log(self, path, number):
        self.wait_until(lambda: self.checkpoints(path), f"a checkpoint is there\n{self.log(number)}", seconds=60)

    def test_preemption_saves_a_checkpoint_and_the_requeued_job_goes_on_from_it(self):
        path, number = self.start_endless("--partition=low")
        # Whoever takes the nodes holds them for a moment only.
        taker = self.sbatch("--partition=high", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
        self.wait_for_slurm(taker, "COMPLETED")
        saved = self.checkpoints(path)
        self.assertEqual(len(saved), 1, self.log(number))
        step = int(saved[0].name.split("-")[1])
        job = self.wait_for_slurm(number, "RUNNING", seconds=240)  # Slurm holds what was requeued back for two minutes
        self.assertEqual(job["Restarts"], "1")
        # The second attempt begins where the first ended.
        self.wait_until(lambda: len(re.findall(r"job \S+ runs on 2 nodes", self.log(number))) == 2, "it is submitted again")
        second = lambda: [int(found) for found in re.findall(r"step +(\d+)", self.log(number).rsplit("runs on 2 nodes", 1)[1])]
        self.wait_until(second, "it trains again")
        self.assertGreater(min(second()), step, self.log(number))
        self.slurm_output("scancel", number)

    def test_before_the_time_limit_the_job_saves_and_goes_back_to_the_queue(self):
        # Slurm looks at limits once in a while: the warning comes up to a minute early, here at once.
        path, number = self.start_endless("--time=2", "--signal=B:USR1@60")
        self.wait_for_checkpoint_in_log(path, number)
        self.wait_until(lambda: self.slurm_job(number).get("Restarts") == "1", f"it is requeued\n{self.log(number)}", seconds=60)
        self.assertIn("got USR1", self.log(number))

    def test_a_signal_to_the_batch_script_saves_a_checkpoint_and_does_not_requeue(self):
        path, number = self.start_endless()
        self.slurm_output("scancel", "--batch", "--signal=TERM", number)
        job = self.wait_for_slurm(number, "FAILED")
        self.assertEqual((job["ExitCode"], job["Restarts"]), ("7:0", "0"), self.log(number))
        self.assertEqual(len(self.checkpoints(path)), 1, self.log(number))

    def test_plain_scancel_ends_everything(self):
        path, number = self.start_endless()
        self.slurm_output("scancel", number)
        self.wait_for_slurm(number, "CANCELLED")
        self.wait_until(lambda: not self.rank_pids(), "no rank is left", seconds=40)

    def test_worker_that_is_killed_is_started_again_and_the_job_goes_on(self):
        path = self.job({**TWO_NODES, "train.steps": 2000, "checkpoint.every_steps": 50_000})
        number = self.sbatch("--nodes=2", SCRIPT, path)
        self.wait_until(lambda: re.search(r"step +\d+", self.log(number)), f"job {number} trains", seconds=120)
        worker = [pid for pid, command in processes(self.mark).items() if "terrace-worker --coordinator" in command and "--name n2" in command]
        os.kill(worker[0], signal.SIGKILL)
        job = self.wait_for_slurm(number, "COMPLETED", "FAILED")
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), self.log(number))
        self.assertIn("worker n2 ended with 137 and is started again", self.log(number))


if __name__ == "__main__":
    unittest.main(verbosity=2)
