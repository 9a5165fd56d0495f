#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of one rank in the middle of a step of a pipeline, and of one that others wait for inside a collective of every kind
of group: all others end within seconds, one cause is named, and the job goes on from its last checkpoint to the same end."""
import os
import pathlib
import signal
import time
import unittest

from service import ServiceTest
from support import FAILURE, GPT, TerraceTest, processes

STEPS = 60
LAYOUT = {"model.config": {**GPT, "n_layer": 4}, "train.steps": STEPS, "checkpoint.every_steps": 10, "checkpoint.keep": 0,
          "resources.devices_per_node": 4, "layout": {"tp": 2, "pp": 2, "micro_batch": 1}}


class LayoutFailureTest(ServiceTest):
    def test_a_killed_member_of_groups_stops_all_and_the_job_goes_on(self):
        self.start_coordinator()
        self.start_worker("worker-0", devices=4)
        path, whole_path = self.job(LAYOUT), self.job(LAYOUT)
        job = self.submit(path)
        watcher = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        self.wait_until(lambda: int(self.status(job)["progress"]["checkpoint_step"]) >= 10, "a checkpoint is there")
        first = self.pids_by_rank()
        self.assertEqual(sorted(first), [0, 1, 2, 3])
        os.kill(first[3], signal.SIGKILL)
        killed_at = time.monotonic()
        self.wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in first.values()),
                        "all ranks of the first epoch have ended", seconds=5)
        print(f"\n  all four had ended {time.monotonic() - killed_at:.2f} s after the kill")

        watched = watcher.wait()
        recovering = [event for event in watched.events("state") if event["state"] == "RECOVERING"]
        self.assertEqual(len(recovering), 1, "one failure")
        self.assertEqual(recovering[0]["reason"], "RANK_DIED")
        message = recovering[0]["message"]
        self.assertIn("rank 3", message)
        self.assertIn("signal 9", message)
        for other in ("rank 0", "rank 1", "rank 2"):
            self.assertNotIn(other, message, "one cause")
        status = self.status(job)
        self.assertEqual((status["state"], status["restarts"]), ("SUCCEEDED", 1), status["message"])
        self.assertEqual(int(status["progress"]["step"]), STEPS)
        restarted = [line for line in self.cli("status", job).out.splitlines() if line.startswith("restarted")]
        self.assertEqual(len(restarted), 1)
        self.assertIn("rank 3", restarted[0], "whoever comes later learns who was lost")
        self.assertIn("signal 9", restarted[0])
        self.assertEqual([pid for pid, command in processes(self.mark).items() if "terrace-rank" in command], [])

        whole = self.submit(whole_path)
        self.cli("watch", whole)
        for name in ("model.safetensors", "optimizer.safetensors"):
            ended, expected = (self.checkpoints(which)[-1] / name for which in (path, whole_path))
            self.assertEqual(ended.read_bytes(), expected.read_bytes(), f"{name}: not as without the kill")

    def test_a_stopped_member_is_not_waited_for_when_the_job_is_cancelled(self):
        self.start_coordinator()
        self.start_worker("worker-0", devices=4)
        job = self.submit(self.job({**LAYOUT, "train.steps": 100_000}))
        self.wait_for_steps(job, 3)
        os.kill(self.pids_by_rank()[2], signal.SIGSTOP)  # the others wait for it inside a collective
        self.cli("cancel", "--force", job)
        self.wait_for_state(job, "CANCELLED")
        self.wait_until(lambda: not self.rank_pids(), "no rank is left", seconds=5)


def ticks(pid):
    """Hundredths of a second that the process has computed."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class CollectiveFailureTest(TerraceTest):
    GROUPS = {"tensor": {"tp": 2}, "pipeline": {"pp": 2, "micro_batch": 4}, "context": {"cp": 2, "context_type": "ring"},
              "data, gathering weights": {"dp": 2, "zero": 3}}

    def test_a_member_killed_while_others_are_in_a_collective_with_it_stops_all_with_one_cause(self):
        for group, layout in self.GROUPS.items():
            with self.subTest(group):
                running = self.start("run", self.job({"train.steps": 1_000_000, "max_restarts": 0,
                                                      "resources.devices_per_node": 2, "layout": layout}), "-o", "json")
                running.wait_for_step(3)
                ranks = self.pids_by_rank()
                os.kill(ranks[1], signal.SIGSTOP)  # the other comes to its next collective and no further
                self.wait_until(lambda: self.waits(ranks[0]), "rank 0 computes nothing any more")
                os.kill(ranks[1], signal.SIGKILL)
                killed_at = time.monotonic()
                self.wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks.values()),
                                "all ranks have ended", seconds=5)
                print(f"\n  {group}: all had ended {time.monotonic() - killed_at:.2f} s after the kill")
                result = running.wait()
                self.assertEqual(self.wait_until_nothing_runs(5), {}, "no orphans")
                self.assertEqual(result.code, FAILURE, str(result))
                self.refused(result, "rank 1", "signal 9")
                self.assertNotIn("rank 0", result.done["message"], "one cause")

    @staticmethod
    def waits(pid):
        before = ticks(pid)
        time.sleep(0.3)
        return ticks(pid) - before <= 1


if __name__ == "__main__":
    unittest.main(verbosity=2)
