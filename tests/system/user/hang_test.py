#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that stand still: the rank that everybody waits for is named with its instruction and what its process does, by each means of
looking; it goes on without a loss, or the job is restarted from its checkpoint, as its spec says; and what only takes long is no hang."""
import os
import pathlib
import signal
import time
import unittest

from service import ServiceTest, Standstill, samples_of
from support import OK

TOLD_SECONDS = 10  # a step takes milliseconds, so that three of them are less
# A layout that does not depend on the machine.
ONE = {"resources.devices_per_node": 1}
TWO = {"resources.devices_per_node": 2, "layout.dp": 2, "layout.micro_batch": 4}
TELL = {"watchdog.on_hang": "tell", "watchdog.timeout": 10}


class HangTest(ServiceTest):
    def service(self, devices):
        coordinator = self.start_coordinator()
        return coordinator, self.start_worker("worker-0", devices=devices)

    def launch(self, changes, until=20):
        path = self.job(changes)
        job = self.submit(path)
        watcher = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        watcher.wait_for_step(until)
        return path, job, watcher

    def stop_rank(self, job, rank, watcher):
        """Its process number, and the status once it is told, which must not come too late."""
        pid = self.pids_by_rank()[rank]
        with Standstill() as standstill:
            os.kill(pid, signal.SIGSTOP)
            stopped = time.monotonic()
            watcher.wait_for(lambda event: event["event"] == "state" and event["reason"] == "RANK_HANGS")
            took = time.monotonic() - stopped
        status = self.status(job)
        self.assertLess(took, TOLD_SECONDS + standstill.longest)
        self.assertGreater(took, 4, "a debugger that looks in for a moment is no hang")
        return pid, status

    def hangs_told(self, watcher):
        return [event["hang"] for event in watcher.events("state") if event.get("hang")]

    def test_a_stopped_rank_of_two_is_named_everywhere_and_goes_on(self):
        self.service(2)
        path, job, watcher = self.launch({**TWO, **TELL, "train.steps": 3000})
        pid, status = self.stop_rank(job, 1, watcher)
        hang = status["hang"]
        self.assertEqual((status["state"], status["reason"]), ("RUNNING", "REASON_RANK_HANGS"))
        self.assertEqual((hang["ranks"], hang["worker"], hang["pid"], hang["process"]), ([1], "worker-0", pid, "PROCESS_STOPPED"))
        self.assertRegex(hang["place"], r"^(instruction \d+ .+ of step \d+ \(train\)|the (agreement of all ranks after|end of) step \d+)$")
        self.assertEqual([waiting["rank"] for waiting in hang["waiting"]], [0])
        named = f"rank 1 on worker-0 (process {pid}) is stopped by a signal, at {hang['place']}; rank 0 waits for it at "
        self.assertIn(named, status["message"])
        with self.subTest("status for people"):
            text = self.cli("status", job).out
            self.assertIn(named, text)
            self.assertRegex(text, rf"hangs +rank 1 for [\d.]+ s, at .*; on worker-0 kill -CONT {pid} lets it go on")
            self.assertRegex(text, r"waits +rank 0 at (instruction \d+|the agreement)")
        with self.subTest("the list"):
            self.assertRegex(self.cli("ls").out, rf"{job} +RUNNING +RANK_HANGS")
        with self.subTest("the events"):
            watcher.wait_for(lambda event: event["event"] == "state" and event["reason"] == "RANK_HANGS" and named in event["message"])
        with self.subTest("metrics of the coordinator and of the worker"):
            samples = self.wait_for_samples((("terrace_job_hangs_total", (("process", "stopped"),)), 1))
            self.assertGreater(samples["terrace_job_hang_seconds", (("job", job), ("rank", "1"))], 4)
            address, = (node["metrics_address"] for node in self.nodes())
            self.assertGreater(samples_of(self.metrics(address))["terrace_rank_standing_seconds", (("job", job), ("rank", "1"))], 4)
        with self.subTest("what is written down"):
            for rank in (0, 1):
                page, = self.folder.glob(f"worker-0/runs/{job}/1/{rank}/hang.txt")
                text = page.read_text()
                self.assertIn(named, text)
                self.assertIn("where its streams stand", text) if "instruction" in hang["place"] and rank == 1 else None
                self.assertRegex(text, rf"(?m)^{self.pids_by_rank()[rank]}  \S+.*  {'T' if rank == 1 else '[A-Z]'}  ")
                self.assertIn(str(page), self.cli("logs", job, "--rank", rank).out)
        with self.subTest("it is left alone, however long"):
            time.sleep(8)  # beyond the timeout, in all
            self.assertEqual((self.status(job)["epoch"], self.status(job)["restarts"]), ("1", 0))
        os.kill(pid, signal.SIGCONT)
        self.wait_until(lambda: "hang" not in self.status(job), "the hang is over", 10)
        watched = watcher.wait()
        self.assertEqual(watched.code, OK, str(watched))
        status = self.status(job)
        self.assertEqual((status["state"], status["restarts"], status["reason"]), ("SUCCEEDED", 0, "REASON_COMPLETED"))
        self.assertEqual([event["step"] for event in watched.events("step")], list(range(1, 3001)), "each step once")
        self.assertEqual(len(self.hangs_told(watched)), 1, "it was told once")
        self.assertNotIn("terrace_job_hang_seconds{", self.metrics(self.coordinator_metrics))

    def test_the_only_rank_of_a_job_is_named_too(self):
        self.service(1)
        _, job, watcher = self.launch({**ONE, **TELL, "train.steps": 1500})
        pid, status = self.stop_rank(job, 0, watcher)
        self.assertEqual((status["hang"]["ranks"], status["hang"]["waiting"]), ([0], []))
        self.assertIn(f"rank 0 on worker-0 (process {pid}) is stopped by a signal, at ", status["message"])
        os.kill(pid, signal.SIGCONT)
        watched = watcher.wait()
        self.assertEqual((watched.code, len(self.hangs_told(watched))), (OK, 1), str(watched))
        self.assertEqual(self.status(job)["restarts"], 0)

    def test_a_job_that_hangs_is_restarted_and_ends_as_if_it_never_had(self):
        self.service(2)
        changes = {**TWO, "train.steps": 400, "checkpoint.every_steps": 50, "checkpoint.keep": 0, "watchdog.timeout": 10}
        whole = self.cli("watch", self.submit(self.job(changes)), "-o", "json", code=OK)
        path, job, watcher = self.launch(changes, until=120)
        pid, status = self.stop_rank(job, 1, watcher)
        self.assertIn("; restarts after 10 s of that", status["message"])
        watched = watcher.wait()
        self.assertEqual(watched.code, OK, str(watched))
        status = self.status(job)
        self.assertEqual((status["state"], status["restarts"], status["epoch"]), ("SUCCEEDED", 1, "2"))
        restart, = status["last_restarts"]
        self.assertEqual(restart["reason"], "REASON_RANK_HANGS")
        self.assertIn(f"rank 1 on worker-0 (process {pid}) is stopped by a signal", restart["message"])
        self.assertGreaterEqual(int(restart["step"]), 100, "it went on from a checkpoint")
        self.assertEqual(watched.losses, whole.losses, "to the bit")
        self.assertFalse(pathlib.Path(f"/proc/{pid}").exists(), "the stopped process was ended")

    def test_what_only_takes_long_is_no_hang(self):
        """A machine that stands still for seconds, many checkpoints and evaluations, a pause."""
        coordinator, worker = self.service(2)
        _, job, watcher = self.launch({**TWO, "train.steps": 2000, "train.eval_every_steps": 200, "checkpoint.every_steps": 100,
                                       "watchdog.timeout": 10})
        all_of_it = [coordinator.pid, worker.pid, *self.rank_pids()]
        for number, order in ((signal.SIGSTOP, reversed(all_of_it)), (signal.SIGCONT, all_of_it)):
            for pid in order:
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(15)
        self.cli("pause", job, "--wait")
        time.sleep(7)
        self.cli("resume", job)
        watched = watcher.wait(90)
        self.assertEqual(watched.code, OK, str(watched))
        self.assertEqual(self.hangs_told(watched), [])
        self.assertEqual(self.status(job)["restarts"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
