#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator whose state is lost and put back from a backup that was made while it served; one that is killed while it makes a
backup leaves none that is half."""
import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import time
import unittest

from service import ServiceTest
from support import INVALID_INPUT, NOT_FOUND, OK, UNAVAILABLE

ENDLESS = {"train.steps": 1_000_000}
LONGER_THAN_ANOTHER_JOB_IS_WAITED_FOR_SECONDS = 11


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

    def large_state(self):
        """A coordinator that knows one job, and whose store takes a while to copy and to send."""
        coordinator = self.start_coordinator()
        self.start_worker("worker-0")
        held = self.cli("submit", self.job({"train.steps": 2}), "--hold", "-o", "json").json()["id"]
        coordinator.end()
        with contextlib.closing(sqlite3.connect(self.folder / "coordinator/state.db")) as store:
            store.execute("CREATE TABLE filling (data BLOB)")
            store.executemany("INSERT INTO filling VALUES (randomblob(100000))", [()] * 400)
            store.commit()
        return self.start_coordinator(), held

    def killed_while(self, coordinator, holds, what):
        """Of a coordinator that is killed while `holds`: the command that asked for the backup, and a copy of what lay on disk."""
        half = self.folder / "half.db"
        for _ in range(20):
            asked = self.start("--coordinator", self.address, "backup", self.folder / "copy.db", "--replace")
            while asked.process.poll() is None and not holds():
                pass
            coordinator.signal(signal.SIGSTOP)
            if holds():
                shutil.copy(self.folder / "coordinator/backup.tmp", half)
                coordinator.signal(signal.SIGKILL)
                coordinator.wait()
                return asked.wait(), half
            coordinator.signal(signal.SIGCONT)
            asked.wait()
        self.fail(f"the moment was not seen: {what}")

    def test_a_coordinator_that_is_killed_while_it_makes_a_backup_leaves_no_half_one(self):
        coordinator, held = self.large_state()
        copy, part, made = (self.folder / name for name in ("copy.db", "copy.db.part", "coordinator/backup.tmp"))
        self.cli("backup", copy)
        whole = copy.read_bytes()

        def is_copied():
            return made.exists() and 0 < made.stat().st_size < len(whole)

        def is_sent():
            return part.exists() and 0 < part.stat().st_size < len(whole)

        for what, holds in (("it is copied", is_copied), ("it is sent", is_sent)):
            with self.subTest(what):
                result, half = self.killed_while(coordinator, holds, what)
                self.assertEqual(result.code, UNAVAILABLE, str(result))
                self.refused(result, *(("ended while it sent the backup", "nothing was written") if holds is is_sent else ("127.0.0.1",)))
                self.assertEqual(copy.read_bytes(), whole, "the copy that was there")
                self.assertFalse(part.exists())
                if what == "it is copied":
                    elsewhere = self.folder / "elsewhere"
                    refused = self.terrace("restore", half, "--state-dir", elsewhere, code=INVALID_INPUT, program="terrace-coordinator")
                    self.refused(refused, "half.db is not restored", "give a file that `terrace backup` wrote")
                    self.assertEqual(list(elsewhere.iterdir()), [])
                coordinator = self.start_coordinator()
                self.assertFalse(made.exists(), "it goes when the coordinator starts")
                self.assertEqual(self.status(held)["state"], "PAUSED")
                copy.unlink()
                self.cli("backup", copy)
                self.assertEqual(len(copy.read_bytes()), len(whole))
        with self.subTest("the command is killed"):
            asked = self.start("--coordinator", self.address, "backup", self.folder / "other.db")
            self.wait_until(lambda: (self.folder / "other.db.part").exists(), "it has begun")
            asked.signal(signal.SIGKILL)
            asked.wait()
            self.assertFalse((self.folder / "other.db").exists())
            self.wait_until(lambda: not made.exists(), "the coordinator forgets it")
            self.cli("backup", self.folder / "other.db")
            self.assertFalse((self.folder / "other.db.part").exists())
        coordinator.end()
        shutil.rmtree(self.folder / "coordinator")
        self.assertIn("restored 1 jobs, 1 of them not ended", self.restore().out)
        self.start_coordinator()
        self.assertEqual(self.status(held)["state"], "PAUSED")

    def test_a_worker_that_comes_back_after_a_restore_gives_up_what_runs_elsewhere_now(self):
        coordinator, workers = self.start_service(2)
        steps = {"train.steps": 1500, "checkpoint.every_steps": 100, "checkpoint.keep": 0}
        whole = self.submit(self.job(steps))
        expected = self.cli("watch", whole, "-o", "json").losses
        for stands_still in (False, True):
            with self.subTest("with its ranks" if stands_still else "its ranks go on"):
                path = self.job(steps)
                job = self.submit(path)
                self.wait_until(lambda: int(self.status(job)["progress"]["checkpoint_step"]) >= 100, "a checkpoint is there")
                copy, old = self.folder / "copy.db", self.rank_pids()
                self.cli("backup", copy, "--replace")
                place = self.status(job)["placement"]["ranks"][0]["worker"]
                index = int(place[-1])
                frozen = [workers[index].pid, *old] if stands_still else []
                for pid in frozen:
                    os.kill(pid, signal.SIGSTOP)
                if not stands_still:
                    workers[index].signal(signal.SIGKILL)
                    workers[index].wait()
                coordinator.signal(signal.SIGKILL)
                coordinator.wait()
                shutil.rmtree(self.folder / "coordinator")
                self.restore()
                coordinator = self.start_coordinator()
                self.wait_until(lambda: any(rank["worker"] != place for rank in self.status(job)["placement"]["ranks"]),
                                "it is given to the other worker")
                if stands_still:
                    time.sleep(LONGER_THAN_ANOTHER_JOB_IS_WAITED_FOR_SECONDS)
                    self.assertEqual(self.status(job)["state"], "STARTING", self.status(job)["message"])
                for pid in frozen:
                    os.kill(pid, signal.SIGCONT)
                if not stands_still:
                    workers[index] = self.start_worker(place)
                self.wait_until(lambda: not set(old) & set(self.rank_pids()), "what it had started is ended")
                status = self.wait_for_state(job, "SUCCEEDED", "FAILED")
                self.assertEqual((status["state"], status["restarts"]), ("SUCCEEDED", 0), status["message"])
                self.assertGreater(int(status["epoch"]), 10_000)
                self.assertNotEqual(status["placement"]["ranks"][0]["worker"], place)
                self.assertEqual(self.node_states(), {"worker-0": "ready", "worker-1": "ready"})
                losses = self.cli("watch", job, "-o", "json").losses
                self.assertEqual(losses, {step: expected[step] for step in losses})
                for name in ("model.safetensors", "optimizer.safetensors"):
                    ended, wanted = (self.checkpoints(which)[-1] / name for which in (path, self.folder / "tiny-1/job.yaml"))
                    self.assertEqual(ended.read_bytes(), wanted.read_bytes(), name)


if __name__ == "__main__":
    unittest.main()
