#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The queue as users meet it: time limits, what a job waits for and when it may start."""
import re
import time
import unittest

from service import ServiceTest
from support import FAILURE, INVALID_INPUT, NOT_FOUND, OK, RESOURCES, USAGE

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
        self.cli("watch", without["id"], code=OK)

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
        samples = self.wait_for_samples((("terrace_job_time_limits_total", ()), 1))
        self.assertEqual(samples["terrace_job_time_limit_seconds", (("job", job),)], 4)

        again = self.submit(path)
        self.wait_for_steps(again, step + 1)
        self.cli("watch", again, code=RESOURCES)


class BackfillTest(ServiceTest):
    def test_a_short_job_starts_before_a_large_one_and_all_that_wait_say_why_and_until_when(self):
        self.start_coordinator()
        self.start_worker("worker-0", devices=2)
        runs = self.submit(self.job({**ENDLESS, "time_limit": "5m"}))
        self.wait_for_steps(runs, 1)
        large = self.submit(self.job({"train.steps": 10, "resources.devices_per_node": 2}))
        endless = self.submit(self.job(ENDLESS))
        before = time.time()
        self.wait_for_state(self.submit(self.job({"train.steps": 5})), "SUCCEEDED")

        status = self.status(large)
        self.assertEqual((status["state"], status["reason"]), ("QUEUED", "REASON_WAITING_FOR_DEVICES"))
        self.assertEqual([wait["reason"] for wait in status["waits"]], ["REASON_WAITING_FOR_DEVICES"])
        starts = int(status["estimated_start_unix_ms"]) / 1000
        self.assertTrue(before < starts <= before + 301, f"before the limit of the job that runs: in {starts - before} s")
        waits = self.status(endless)["waits"]
        self.assertEqual([wait["reason"] for wait in waits], ["REASON_WAITING_FOR_DEVICES", "REASON_PRIORITY"])
        self.assertEqual(waits[1]["message"], f"job {large} is ahead of it")
        shown = self.cli("status", endless).out
        self.assertRegex(shown, r"(?m)^waits for +WAITING_FOR_DEVICES: needs 1 worker with 1 device.*; 1 of the 2 devices on 1 "
                                r"matching worker are free now$")
        self.assertIn(f"PRIORITY: job {large} is ahead of it", shown)
        self.assertRegex(shown, r"(?m)^starts +in about .*, by the planned ends of the jobs that run and of those ahead of it$")
        self.assertRegex(self.cli("ls").out, rf"STARTS IN\n{endless} .* m \d\d s\n{large} .* [1-5] m \d\d s\n{runs} .* -\n")
        self.cli("cancel", "--force", runs)
        self.cli("watch", large, code=OK)
        self.wait_for_state(endless, "RUNNING")
        self.cli("cancel", "--force", endless)
        self.wait_until(lambda: not self.rank_pids(), "its rank has ended")

    def test_an_unknown_start_is_said(self):
        self.start_service(1)
        wide = self.submit(self.job({"resources.devices_per_node": 8}))
        status = self.status(wide)
        self.assertEqual((status["estimated_start_unix_ms"], status["estimate"]), ("0", "not known: no worker could hold it"))
        self.assertRegex(self.cli("ls").out, rf"{wide} .* unknown\n")


class DependencyTest(ServiceTest):
    def after(self, *options, code=OK):
        return self.cli("submit", self.job({"train.steps": 5}), *options, "-o", "json", code=code)

    def test_jobs_start_after_others_and_end_when_they_never_can(self):
        self.start_coordinator()
        self.start_worker("worker-0", devices=3)
        first = self.submit(self.job(ENDLESS))
        self.wait_for_steps(first, 1)
        ok = self.after("--after", first).json()["id"]
        chained = self.after("--after", ok).json()["id"]
        failed = self.after("--after-failed", first).json()["id"]
        ended = self.after("--after-any", f"{first},{failed}").json()["id"]
        self.assertEqual(self.status(ok)["reason"], "REASON_DEPENDENCY")
        shown = self.cli("status", ended).out
        self.assertIn(f"DEPENDENCY: job {first} (RUNNING) must end first, and job {failed} (QUEUED) must end first", shown)
        self.assertRegex(shown, rf"(?m)^after +{first} has ended, {failed} has ended$")
        with self.subTest("what cannot be is refused"):
            self.refused(self.after("--after", "nobody-9", code=NOT_FOUND), "after: no job nobody-9")
            self.refused(self.after("--after", f"{first},{first}", code=INVALID_INPUT), "is named twice")
        self.cli("cancel", first)
        self.assertEqual(self.cli("watch", ok, code=FAILURE).code, FAILURE)
        self.assertEqual(self.status(ok)["message"],
                         f"job {first} is CANCELLED, and this job was to start after it had succeeded")
        self.assertEqual(self.status(chained)["reason"], "REASON_DEPENDENCY_FAILED")
        self.cli("watch", failed, code=OK)
        self.cli("watch", ended, code=OK)
        self.refused(self.after("--after", first, code=INVALID_INPUT), "it would never start")

    def test_shares_of_a_service_without_users(self):
        self.start_service(1)
        self.cli("watch", self.submit(self.job({"train.steps": 200})), code=OK)
        self.submit(self.job({"train.steps": 200, "resources.devices_per_node": 2}))
        self.assertIn("device time counts half after 7d", self.cli("shares").out)
        self.assertEqual(self.cli("shares", "-o", "json").json()["half_life_seconds"], "604800")

    def test_quotas_of_memory_are_read_or_refused(self):
        for options, told in ((("--quota-memory", "host=lots"), "which must be device, host or nvme and a size"),
                              (("--quota-memory", "disk=1GiB"), "host=512GiB"),
                              (("--quota-memory-of", "host=1GiB"), "which must be a user, device, host or nvme and a size")):
            with self.subTest(options):
                refused = self.terrace("serve", *options, program="terrace-coordinator", code=USAGE)
                self.assertIn(told, refused.err)
        self.coordinator_options = ("--quota-memory", "device=64GiB", "--quota-memory-of", "alice:host=1TiB")
        self.start_service(1)
        self.cli("watch", self.submit(self.job({"train.steps": 5})), code=OK)  # nobody is known: it has no quota
        self.assertIn("USER", self.cli("shares").out)


if __name__ == "__main__":
    unittest.main()
