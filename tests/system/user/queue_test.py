#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The queue as users meet it: time limits, what a job waits for and when it may start."""
import re
import unittest

from service import ServiceTest, samples_of
from support import INVALID_INPUT, RESOURCES

ENDLESS = {"train.steps": 1_000_000}


class TimeLimitTest(ServiceTest):
    coordinator_options = ("--time-limit-max", "1h", "--time-limit-default", "30m")

    def test_limits_that_are_none_or_too_long_are_refused(self):
        self.start_service(1)
        for text, told in (("0s", "from 1s to 366d"), ("-5m", "a time such as 90s"), ("90", "a time such as 90s"),
                           ("soon", "2h30m"), ("2h", "this coordinator allows at most 1h (--time-limit-max)")):
            with self.subTest(text):
                refused = self.cli("submit", self.job({"time_limit": text}), code=INVALID_INPUT)
                self.assertIn("time_limit: got", refused.err)
                self.assertIn(told, refused.err)
        without = self.cli("submit", self.job({"train.steps": 2}), "-o", "json").json()
        self.assertEqual(without["spec"]["time_limit_seconds"], "1800", "the coordinator's default")

    def test_a_job_ends_at_its_limit_with_a_checkpoint_and_goes_on_when_submitted_again(self):
        self.start_service(1)
        path = self.job({**ENDLESS, "time_limit": "4s"})
        submitted = self.cli("submit", path).out
        job = re.search(r"^submitted (\S+)$", submitted, re.M).group(1)
        self.assertRegex(submitted, r"note: its steps are planned to take .*, and its time limit is 4s")
        self.wait_for_steps(job, 3)
        self.assertRegex(self.cli("status", job).out, r"(?m)^left +\d.*\ntime limit +4s, [\d.]+ m?s used$")
        self.assertRegex(self.cli("ls").out, rf"LIMIT\n{job} .* 4s\n")
        self.cli("watch", job, code=RESOURCES)
        ended = self.status(job)
        step = int(ended["progress"]["step"])
        self.assertEqual((ended["state"], ended["reason"]), ("FAILED", "REASON_TIME_LIMIT"))
        self.assertEqual(ended["message"], f"its time limit of 4s was reached at step {step} of 1000000; submit it again to go on "
                                           f"from the checkpoint of step {step}")
        self.assertGreaterEqual(ended["held_seconds"], 4)
        self.assertEqual(self.checkpoints(path)[-1].name.lstrip("step-0"), str(step).lstrip("0"))
        self.assertRegex(self.cli("ls", "--all").out, rf"{job} +FAILED +TIME_LIMIT")
        samples = samples_of(self.metrics(self.coordinator_metrics))
        self.assertEqual(samples["terrace_job_time_limits_total", ()], 1)
        self.assertEqual(samples["terrace_job_time_limit_seconds", (("job", job),)], 4)

        again = self.submit(path)
        self.wait_for_steps(again, step + 1)
        self.cli("watch", again, code=RESOURCES)


if __name__ == "__main__":
    unittest.main()
