#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker's profile that is wrong: a job goes another way than its plan, says so once, and the worker measures it anew."""
import json
import unittest

from service import ServiceTest
from support import LLAMA

TOO_FAST = 50
LONG_STEPS = {"model.config": {**LLAMA, "hidden_size": 128, "intermediate_size": 256}, "train.global_batch": 64,
              "train.steps": 1_000_000, "layout.micro_batch": 64}
MEASURED_SECONDS = 90  # 20 s of patience with a busy machine, and what a measurement may take there


class ProfileDoubtTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.profiles = self.folder / "profiles"
        self.environment["TERRACE_PROFILE_DIR"] = str(self.profiles)
        self.file = self.profiles / "profile-1.json"

    def plant_wrong_profile(self):
        """One that says that this machine is much faster than it is; the rate of memory in it."""
        self.terrace("plan", self.job({"layout.dp": 1}), seconds=120)
        (self.profiles / "profile-1.json.doubt").unlink(missing_ok=True)
        profile = json.loads(self.file.read_text())
        for rate in profile["kernels"]:
            for key in ("flops_per_second", "cached_flops_per_second"):
                if key in rate:
                    rate[key] *= TOO_FAST
        profile["memory_bytes_per_second"] *= TOO_FAST
        self.file.write_text(json.dumps(profile))
        return profile["memory_bytes_per_second"]

    def test_a_wrong_profile_is_noticed_said_once_and_measured_anew(self):
        wrong = self.plant_wrong_profile()
        self.start_service(workers=1)
        self.assertEqual(self.nodes()[0]["profile"]["memory_bytes_per_second"], wrong)
        submitted = self.submit(self.job(LONG_STEPS))
        watching = self.start("--coordinator", self.address, "watch", submitted, "-o", "json")
        warning = watching.wait_for(lambda event: event["event"] == "warning")
        self.assertIn("where the plan says", warning["text"])
        self.assertIn("worker worker-0 measures it anew once nothing runs there", warning["text"])
        self.wait_until(lambda: (self.profiles / "profile-1.json.doubt").exists(), "the kept profile is marked")
        self.assertEqual(self.nodes()[0]["profile"]["memory_bytes_per_second"], wrong, "the job has the machine")
        self.cli("cancel", submitted, "--force")

        def measured():
            profile = self.nodes()[0]["profile"]
            return profile if profile["memory_bytes_per_second"] != wrong else None
        profile = self.wait_until(measured, "the worker has a new profile", seconds=MEASURED_SECONDS)
        self.assertLess(profile["memory_bytes_per_second"], wrong / 5)
        self.assertEqual(json.loads(self.file.read_text())["memory_bytes_per_second"], profile["memory_bytes_per_second"], "it is kept")
        self.assertEqual(len(watching.wait().events("warning")), 1, "once")
        # The next plan is for it.
        planned = self.cli("plan", self.job(LONG_STEPS), "-o", "json").json()
        self.assertGreater(planned["time"]["step_seconds"], 1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
