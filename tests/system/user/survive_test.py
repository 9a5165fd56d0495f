#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a coordinator, a worker daemon or a rank loses no job, and what need not stop goes on."""
import os
import re
import signal
import time
import unittest

from service import ServiceTest, Standstill
from support import OK, processes


LOGS_GO_ON_SECONDS = 4  # 2 on a quiet machine


class SurviveTest(ServiceTest):
    def test_coordinator_dies_and_training_goes_on(self):
        coordinator, _ = self.start_service(2)
        path = self.job({"train.steps": 1500, "resources.nodes": 2, "checkpoint.every_steps": 50, "checkpoint.keep": 0})
        job, other = self.submit(path), self.submit(self.job({"train.steps": 10, "resources.nodes": 2}))
        self.wait_for_steps(job, 20)
        ranks = self.rank_pids()
        coordinator.signal(signal.SIGKILL)
        coordinator.wait()
        reached = len(self.checkpoints(path))
        self.wait_until(lambda: len(self.checkpoints(path)) >= reached + 3, "checkpoints appear while nobody coordinates")
        self.assertEqual(self.rank_pids(), ranks, "the same processes")

        self.start_coordinator()
        self.assertEqual({item["id"] for item in self.cli("ls", "-a", "-o", "json").json()["jobs"]}, {job, other})
        self.wait_until(lambda: self.status(job)["state"] in ("RUNNING", "SUCCEEDED"), "it is known to run", seconds=15)
        status = self.wait_for_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(status["state"], "SUCCEEDED", status["message"])
        self.assertEqual((status["restarts"], int(status["progress"]["step"])), (0, 1500))
        self.assertEqual(self.wait_for_state(other, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")

    def test_no_worker_is_lost_while_the_coordinator_stands_still(self):
        coordinator, _ = self.start_service(1)
        job = self.submit(self.job({"train.steps": 100_000}))
        self.wait_for_steps(job, 20)
        ranks = self.rank_pids()
        for _ in range(2):
            coordinator.signal(signal.SIGSTOP)
            time.sleep(4)  # longer than a worker may be silent
            coordinator.signal(signal.SIGCONT)
            self.wait_for_steps(job, self.step_of(job) + 20)
        status = self.status(job)
        self.assertEqual((status["state"], status["restarts"]), ("RUNNING", 0), status["message"])
        self.assertEqual(self.rank_pids(), ranks, "the same processes")
        self.cli("cancel", job)

    def test_job_ends_while_the_coordinator_is_away(self):
        coordinator, _ = self.start_service(1)
        job = self.submit(self.job({"train.steps": 300}))
        self.wait_for_steps(job, 5)
        coordinator.signal(signal.SIGKILL)
        coordinator.wait()
        self.wait_until(lambda: not self.rank_pids(), "the rank ends by itself")
        self.start_coordinator()
        status = self.wait_for_state(job, "SUCCEEDED", "FAILED", "RECOVERING")
        self.assertEqual((status["state"], status["restarts"]), ("SUCCEEDED", 0), status["message"])
        self.assertEqual(int(status["progress"]["step"]), 300)

    def test_logs_go_on_when_the_coordinator_comes_back_and_when_the_job_starts_again(self):
        coordinator, _ = self.start_service(1)
        job = self.submit(self.job({"train.steps": 100_000, "checkpoint.every_steps": 200}))
        follower = self.start("--coordinator", self.address, "logs", "-f", job)

        def printed():
            return [int(step) for step in re.findall(r"step (\d+)[ :]", follower.text())]
        self.wait_until(lambda: len(printed()) > 20, "the log is printed")
        for number in (signal.SIGKILL, signal.SIGTERM):
            coordinator.signal(number)
            coordinator.wait()
            reached = printed()[-1]
            with Standstill() as standstill:
                coordinator = self.start_coordinator()
                back = time.monotonic()
                self.wait_until(lambda: printed()[-1] > reached, "it goes on")
                took = time.monotonic() - back
            print(f"logs -f went on {took:.2f} s after the coordinator was back")
            self.assertLess(took, LOGS_GO_ON_SECONDS + standstill.longest)
            self.wait_until(lambda: printed()[-1] > reached + 20, "it stays")
        steps = printed()
        self.assertEqual(steps, list(range(steps[0], steps[-1] + 1)), "no line is lost, none is printed twice")
        os.kill(self.rank_pids()[0], signal.SIGKILL)
        self.wait_until(lambda: self.status(job)["restarts"] == 1, "it is started again")
        self.wait_until(lambda: any(later <= earlier for earlier, later in zip(printed(), printed()[1:])),
                        "the log of the next start follows, from the checkpoint on")
        self.cli("cancel", "--force", job)
        self.assertEqual(follower.wait().code, OK)

    def test_watch_goes_on_when_the_coordinator_comes_back(self):
        coordinator, _ = self.start_service(1)
        steps = 9000  # so many that the job outlives two starts of a coordinator
        job = self.submit(self.job({"train.steps": steps}))
        watcher = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        for number in (signal.SIGKILL, signal.SIGTERM):
            watcher.wait_for_step(self.step_of(job) + 20)
            coordinator.signal(number)
            coordinator.wait()
            coordinator = self.start_coordinator()
        result = watcher.wait()
        self.assertEqual(result.code, OK, str(result))
        self.assertEqual(max(result.losses), steps)

    def test_worker_dies_and_its_rank_goes_on(self):
        _, workers = self.start_service(2)
        path = self.job({"train.steps": 1500, "resources.nodes": 2, "checkpoint.every_steps": 50, "checkpoint.keep": 0})
        job = self.submit(path)
        self.wait_for_steps(job, 20)
        ranks = self.rank_pids()
        workers[0].signal(signal.SIGKILL)
        workers[0].wait()
        self.start_worker("worker-0")
        self.assertEqual(self.rank_pids(), ranks, "the same processes")
        status = self.wait_for_state(job, "SUCCEEDED", "FAILED", "RECOVERING")
        self.assertEqual((status["state"], status["restarts"]), ("SUCCEEDED", 0), status["message"])

    def run_of(self, job, rank):
        return next(self.folder.glob(f"worker-*/runs/{job}/1/{rank}"))

    def assert_told_as_logged(self, job):
        log = self.run_of(job, 0) / "rank.log"
        logged = [int(step) for step in re.findall(r"step (\d+) of ", log.read_text())]
        events = self.cli("watch", job, "-o", "json", code=None).events()
        told = [int(event["step"]) for event in events if event["event"] == "step"]
        self.assertEqual(told, list(range(1, told[-1] + 1)))
        self.assertIn(told[-1], (logged[-1], logged[-1] + 1), "the log and the events end with the same step")
        self.assertEqual(events[-1]["event"], "state", "after the steps")

    def test_steps_of_a_killed_rank_are_all_told_once(self):
        self.start_service(1)
        job = self.submit(self.job({"train.steps": 100_000, "max_restarts": 0}))
        self.wait_for_steps(job, 50)
        for pid in self.rank_pids():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_state(job, "FAILED")
        self.assert_told_as_logged(job)

    def test_steps_are_all_told_once_whichever_of_two_ranks_is_killed(self):
        self.start_service(2)
        for victim in (0, 1):  # rank 0 tells
            with self.subTest(killed=victim):
                job = self.submit(self.job({"train.steps": 100_000, "max_restarts": 0, "resources.nodes": 2}))
                self.wait_for_steps(job, 50)
                os.kill(int((self.run_of(job, victim) / "pid").read_text()), signal.SIGKILL)
                self.wait_for_state(job, "FAILED")
                self.assert_told_as_logged(job)

    def test_lost_worker_restarts_the_job_from_its_checkpoint(self):
        _, workers = self.start_service(2)
        path = self.job({"train.steps": 100_000, "checkpoint.every_steps": 50})
        job = self.submit(path)
        self.wait_until(lambda: int(self.status(job)["progress"]["checkpoint_step"]) >= 50, "a checkpoint is there")
        name = self.status(job)["placement"]["ranks"][0]["worker"]
        # The node is gone: its daemon and its ranks at once.
        lost = workers[int(name[-1])]
        for pid in [lost.pid, *self.rank_pids()]:
            os.kill(pid, signal.SIGKILL)
        lost.wait()
        self.wait_until(lambda: self.status(job)["epoch"] != "1" and self.status(job)["state"] == "RUNNING",
                        "it runs again", seconds=30)
        status = self.status(job)
        self.assertEqual(status["restarts"], 1)
        self.assertNotEqual(status["placement"]["ranks"][0]["worker"], name)
        self.wait_for_steps(job, 60)
        self.assertEqual(self.node_states()[name], "lost")
        self.cli("cancel", "--force", job)
        self.wait_for_state(job, "CANCELLED")

    def test_restarts_without_progress_are_bounded(self):
        self.start_service(1)
        job = self.submit(self.job({"train.steps": 100_000, "max_restarts": 2}))
        for epoch in range(1, 4):
            self.wait_until(lambda: self.status(job)["epoch"] == str(epoch) and self.rank_pids()
                            and self.status(job)["state"] == "RUNNING", f"epoch {epoch} runs")
            for pid in self.rank_pids():
                os.kill(pid, signal.SIGKILL)
        status = self.wait_for_state(job, "FAILED")
        self.assertEqual((status["reason"], status["restarts"]), ("REASON_RESTARTS_EXHAUSTED", 2))
        self.assertIn("max_restarts", status["message"])
        self.assertEqual([pid for pid, command in processes(self.mark).items() if "terrace-rank" in command], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
