#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that cannot be written: the job fails as a shortage of resources, with the place named, and the last complete
checkpoint stays as it was. A worker that cannot keep the program of a job that starts says so, and tries again."""
import os
import pathlib
import resource
import subprocess
import unittest

from service import ServiceTest
from support import GPT, OK, RESOURCES, TerraceTest

WIDE = {**GPT, "n_embd": 64}  # a checkpoint of about 1.3 MB


class FullDiskTest(TerraceTest):
    def check(self, job, changes, words):
        """The first checkpoint went well, a later one could not be written."""
        result = self.train(job, code=RESOURCES)
        self.assertEqual((result.done["state"], result.done["reason"]), ("FAILED", "CHECKPOINT_ERROR"))
        self.refused(result, *words)
        directory = pathlib.Path(result.done["checkpoint"]).parent
        self.assertEqual([path.name for path in sorted(directory.iterdir()) if not path.name.endswith(".lock")],
                         [pathlib.Path(result.done["checkpoint"]).name], "no half checkpoint is left")
        self.terrace("ckpt", "verify", result.done["checkpoint"])
        return result

    @unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
    def test_full_file_system(self):
        place = self.folder / "small"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", place], check=True)
        changes = {"model.config": WIDE, "train.steps": 40, "checkpoint.every_steps": 10, "checkpoint.keep": 0,
                   "checkpoint.directory": str(place)}
        job = self.job(changes)
        failed = self.check(job, changes, (str(place), "no space left", "step 20"))
        self.assertLess(failed.done["step"], 40)

        subprocess.run(["mount", "-o", "remount,size=16m", place], check=True)
        rest = self.train(job, code=OK)
        self.assertEqual(min(rest.losses), 11, "with room again, it goes on from what was saved")

    @unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
    def test_full_disk_under_the_state_of_a_run(self):
        place = self.folder / "small"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", place], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", place], check=True)
        result = self.terrace("run", self.job(), "--state-dir", place / "state", code=RESOURCES)
        self.refused(result, str(place / "state"), "no space left", "free some space")

    @unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
    def test_a_page_that_was_there_stays_where_the_new_one_has_no_room(self):
        place = self.folder / "small"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", place], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", place], check=True)
        page = place / "page.html"
        page.write_text("the page before")
        result = self.terrace("plan", self.job(), "--html", page, code=RESOURCES)
        self.refused(result, str(page), "no space left")
        self.assertEqual([(path, path.read_text()) for path in place.iterdir()], [(page, "the page before")])

    def test_limit_on_the_size_of_files(self):
        limit = (1 << 20, 1 << 20)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        job = self.job({"model.config": {**GPT, "n_embd": 128}, "train.steps": 10})
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit[0], before[1]))
        result = self.train(job, code=RESOURCES)
        self.refused(result, str(job.parent / "checkpoints"), "file too large")
        self.assertEqual(result.done["reason"], "CHECKPOINT_ERROR")

    def test_directory_that_cannot_be_made(self):
        self.write("occupied", "a file where the folder should be")
        result = self.train(self.job({"checkpoint.directory": "../occupied/checkpoints"}), code=RESOURCES)
        self.refused(result, "occupied", "checkpoint")
        self.assertEqual(result.done["reason"], "CHECKPOINT_ERROR")
        self.assertEqual(result.events("step"), [], "told before hours of training, not after")


@unittest.skipUnless(os.geteuid() == 0, "mounting needs root")
class FullWorkerTest(ServiceTest):
    """A worker whose own disk is full when a job is to start there."""

    def setUp(self):
        super().setUp()
        self.place = self.folder / "worker-0"
        self.place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", self.place], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.place], check=True)
        self.start_service(workers=1)
        self.ballast = self.place / "ballast"

    def fill(self):
        with open(self.ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def wait_for_message(self, job, words, seconds):
        def message():
            status = self.status(job)
            return words.lower() in status["message"].lower() and status
        return self.wait_until(message, f"{job} says {words}", seconds)

    def test_what_its_start_waits_for_is_told_and_it_goes_on_when_there_is_room(self):
        self.fill()
        job = self.submit(self.job({"train.steps": 5}))
        status = self.wait_for_message(job, "no space left", 20)
        self.assertEqual(status["state"], "STARTING")
        for words in ("rank 0 on worker-0", str(self.place / "programs"), "tried again", "free some space"):
            self.assertIn(words, status["message"])
        watched = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        watched.wait_for(lambda event: event["event"] == "state" and "No space left" in event["message"])
        self.ballast.unlink()
        self.assertEqual(self.wait_for_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")

    def test_it_fails_in_the_end_and_the_jobs_behind_it_run(self):
        self.fill()
        job = self.submit(self.job({"train.steps": 5, "max_restarts": 0}))
        behind = self.submit(self.job({"train.steps": 5}))
        self.wait_until(lambda: self.status(job)["state"] == "FAILED", "the start is given up", 90)
        self.ballast.unlink()
        self.assertIn("No space left", self.status(job)["message"])
        self.assertIn("tried again for 30 s", self.status(job)["message"])
        self.assertEqual(self.wait_for_state(behind, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")


if __name__ == "__main__":
    unittest.main(verbosity=2)
