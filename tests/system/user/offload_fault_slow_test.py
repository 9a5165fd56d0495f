#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A drive that never answers: the rank gives up after two minutes and says so, and the job goes on from its checkpoint. And one
that lies, which only checksums find out."""
import unittest

from offload_fault_test import EIO, FaultTest
from support import FAILURE


class OffloadFaultSlowTest(FaultTest):
    def break_now(self, direction):
        broken = self.folder / "broken"
        broken.write_text(f"fail {direction} {EIO}")
        broken.rename(self.fault)

    def fails_while_states_are_filled(self, job, *words):
        """The rank has prepared all it needs, and writes its states to a drive that is slow and then fails."""
        self.fault.write_text("slow write 300")
        logs = set(self.folder.glob("state/**/rank.log"))
        running = self.start("run", job, "-o", "json")
        self.wait_until(lambda: any("memory: device" in log.read_text() for log in set(self.folder.glob("state/**/rank.log")) - logs),
                        "the rank is prepared")
        self.break_now("write")
        failed = running.wait(60)
        self.fault.unlink()
        self.assertEqual(failed.events("step"), [])
        recovering = [event["message"] for event in failed.events("state") if event["state"] == "RECOVERING"]
        self.assertEqual(len(recovering), 1, str(failed))
        for word in ("cannot store the state of", "cannot write", *words):
            self.assertIn(word, recovering[0])
        self.assert_failed_by_drive(failed)

    def test_a_drive_that_fails_while_weights_are_made(self):
        self.load_drive()
        self.fails_while_states_are_filled(self.offloaded())

    def test_a_drive_that_fails_while_a_job_resumes(self):
        self.load_drive()
        job = self.offloaded({"train.steps": 4})
        self.train(job)
        job.write_text(job.read_text().replace('"steps": 4', '"steps": 6'))
        self.fails_while_states_are_filled(job, "cannot resume from", "step-00000004")
        self.terrace("ckpt", "verify", self.checkpoints(job)[-1])
        self.assertEqual(min(self.train(job).losses), 5)

    def test_a_drive_that_fails_while_a_checkpoint_is_written(self):
        """The last checkpoint is written after all else; a slow drive leaves time to break it meanwhile."""
        self.load_drive()
        job = self.offloaded({"train.steps": 1, "checkpoint.every_steps": 0})
        self.fault.write_text("slow any 200")
        running = self.start("run", job, "-o", "json")
        running.wait_for(lambda event: event["event"] == "eval")
        self.break_now("read")
        failed = running.wait(60)
        self.assert_failed_by_drive(failed, "cannot write the checkpoint of step 1", "cannot read")
        self.assertEqual(self.checkpoints(job), [])

    def test_a_drive_that_lies_is_found_out(self):
        self.break_drive("lie read 0", "threads", ("instruction", "checksum", "nvme.paths"), verify=True)

    def never_answers(self, engine, hang):
        """hang(running) makes the drive hang: from then on the rank waits for two minutes, once."""
        self.load_drive()
        job = self.offloaded({"train.steps": 1_000_000, "max_restarts": 0}, engine=engine)
        running = self.start("run", job, "-o", "json")
        hang(running)
        failed = running.wait(150)
        self.assertEqual(failed.code, FAILURE, str(failed))
        self.refused(failed, f"{self.nvme}/.terrace-", "rank 0", "no answer for 2m", "nvme.paths")
        self.fault.unlink()
        self.assert_goes_on(job, failed)

    def test_a_drive_that_never_answers(self):
        def hang(running):
            running.wait_for(lambda event: event["event"] == "checkpoint")
            self.fault.write_text("hang any 0")

        for engine in ("io_uring", "threads"):
            with self.subTest(engine):
                self.never_answers(engine, hang)

    def test_a_drive_that_never_answers_a_checkpoint(self):
        """The next step's writes wait until the checkpoint has read the state: then they are not to begin waiting for the drive."""
        def hang(running):
            running.wait_for(lambda event: event["event"] == "checkpoint")
            self.fault.write_text("slow any 50")
            seen = max(running.result().losses)
            step = running.wait_for(lambda event: event["event"] == "step" and event["step"] >= seen + 2 and event["step"] % 2 == 0)["step"]
            hangs = self.folder / "hangs"
            hangs.write_text("hang any 0")
            hangs.rename(self.fault)
            self.assertNotIn(step, [event["step"] for event in running.result().events("checkpoint")], "it is being written")

        self.never_answers("threads", hang)


if __name__ == "__main__":
    unittest.main(verbosity=2)
