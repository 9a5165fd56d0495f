#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A drive that never answers: the rank gives up after two minutes and says so, and the job goes on from its checkpoint. And one
that lies, which only checksums find out."""
import unittest

from offload_fault_test import FaultTest
from support import FAILURE


class OffloadFaultSlowTest(FaultTest):
    def test_a_drive_that_lies_is_found_out(self):
        self.break_drive("lie read 0", "threads", ("instruction", "checksum", "nvme.paths"), verify=True)

    def test_a_drive_that_never_answers(self):
        for engine in ("io_uring", "threads"):
            with self.subTest(engine):
                self.load_drive()
                job = self.offloaded({"train.steps": 1_000_000, "max_restarts": 0}, engine=engine)
                running = self.start("run", job, "-o", "json")
                running.wait_for(lambda event: event["event"] == "checkpoint")
                self.fault.write_text("hang any 0")
                failed = running.wait(200)
                self.assertEqual(failed.code, FAILURE, str(failed))
                self.refused(failed, f"{self.nvme}/.terrace-", "rank 0", "no answer for 2m", "nvme.paths")
                self.fault.unlink()
                self.assert_goes_on(job, failed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
