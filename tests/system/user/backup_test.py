#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator whose state is lost and put back from a backup that was made while it served."""
import shutil
import stat
import unittest

from service import ServiceTest
from support import INVALID_INPUT, NOT_FOUND, OK, UNAVAILABLE

ENDLESS = {"train.steps": 1_000_000}


class BackupTest(ServiceTest):
    def restore(self, *options, code=OK):
        return self.terrace("restore", self.folder / "copy.db", "--state-dir", self.folder / "coordinator", *options,
                            code=code, program="terrace-coordinator")

    def test_jobs_go_on_from_their_checkpoints_and_what_came_after_the_copy_is_forgotten(self):
        coordinator = self.start_coordinator()
        self.start_worker("worker-0", devices=2)
        path = self.job({**ENDLESS, "checkpoint.every_steps": 5})
        trains = self.submit(path)
        self.wait_for_steps(trains, 6)
        ended = self.submit(self.job({"train.steps": 2}))
        self.wait_for_state(ended, "SUCCEEDED")
        copy = self.folder / "copy.db"
        self.assertEqual(self.cli("backup", copy, "-o", "json").json()["files"][0]["path"], str(copy))
        self.assertEqual(stat.S_IMODE(copy.stat().st_mode), 0o600)
        self.assertIn("is there already", self.cli("backup", copy, code=INVALID_INPUT).err)
        self.assertEqual(list(self.folder.glob("coordinator/backup*")), [], "nothing is left")
        self.cli("backup", copy, "--replace")
        later = self.submit(self.job(ENDLESS))
        self.wait_for_steps(later, 1)
        self.assertIn("another coordinator uses", self.restore("--replace", code=UNAVAILABLE).err)

        coordinator.process.kill()
        coordinator.process.wait()
        self.assertIn("with --replace it is moved aside", self.restore(code=INVALID_INPUT).err)
        shutil.rmtree(self.folder / "coordinator")
        step = max(int(path.name.removeprefix("step-")) for path in self.checkpoints(path))
        self.assertIn("restored 2 jobs, 1 of them not ended", self.restore().out)
        self.start_coordinator()
        self.wait_until(lambda: self.node_states().get("worker-0") == "ready", "the worker is back")
        self.wait_for_steps(trains, step + 1)
        status = self.status(trains)
        self.assertEqual((status["state"], status["restarts"]), ("RUNNING", 0), "that is no failure")
        self.assertEqual(self.status(ended)["state"], "SUCCEEDED")
        self.cli("status", later, code=NOT_FOUND)
        self.wait_until(lambda: len(self.rank_pids()) == 1, "the rank of the job that nobody knows is stopped")
        new = self.submit(self.job({"train.steps": 2}))
        self.assertGreater(int(new.rsplit("-")[-1]), 1000, "no number is given out twice")
        self.wait_for_state(new, "SUCCEEDED")
        self.cli("cancel", "--force", trains)


if __name__ == "__main__":
    unittest.main()
