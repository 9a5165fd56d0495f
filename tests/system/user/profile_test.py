#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Profiles of this machine: measured once, kept, never taken from another machine."""
import json
import unittest

from support import OK, TerraceTest


class ProfileTest(TerraceTest):
    def setUp(self):
        super().setUp()
        self.profiles = self.folder / "profiles"
        self.environment["TERRACE_PROFILE_DIR"] = str(self.profiles)

    def plan(self):
        """Beside other work a measurement may take all of its time, 45 s, and what was measured then is in doubt: not here."""
        planned = self.terrace("plan", self.job({"layout.dp": 1}), "-o", "json", seconds=120)
        self.assertTrue((self.profiles / "profile-1.json").exists(), f"no profile is kept: {planned.err}")
        (self.profiles / "profile-1.json.doubt").unlink(missing_ok=True)
        return planned

    def test_a_profile_is_kept_and_one_of_other_hardware_is_measured_again(self):
        first = self.plan()
        self.assertIn("measuring this machine", first.err)
        file = self.profiles / "profile-1.json"
        kept = json.loads(file.read_text())
        self.assertTrue(kept["measured"])
        self.assertGreater(min(rate["flops_per_second"] for rate in kept["kernels"]), 0)
        self.assertGreater(json.loads(first.out)["time"]["step_seconds"], 0)

        self.assertNotIn("measuring", self.plan().err)

        file.write_text(json.dumps({**kept, "hardware": "0123456789abcdef", "name": "another machine"}))
        again = self.plan()
        self.assertIn("measured on other hardware", again.err)
        self.assertIn("another machine", again.err)
        self.assertEqual(json.loads(file.read_text())["hardware"], kept["hardware"])

    def test_a_profile_in_a_file_is_used_on_the_machine_that_it_is_of(self):
        self.plan()
        kept = json.loads((self.profiles / "profile-1.json").read_text())
        gpus = {**kept, "device": "cuda", "name": "NVIDIA A10", "hardware": "0123456789abcdef"}
        file = self.folder / "profile.json"

        def plan(profiles, job=None, code=OK):
            file.write_text(json.dumps({"profiles": profiles}))
            return self.terrace("plan", job or self.job({"layout.dp": 1}), "--profile", file, code=code)
        self.assertIn("(measured)", plan([gpus, kept]).out)
        other = plan([{**kept, "hardware": "0123456789abcdef"}], code=None)
        self.assertNotEqual(other.code, OK)
        self.assertIn("was measured on other hardware", other.err)
        none = plan([gpus], code=None)
        self.assertNotEqual(none.code, OK)
        self.assertIn("has no profile of a rank with 1 threads", none.err)

        cuda = self.job({"layout.dp": 1, "resources.device": "cuda"}, name="cuda.yaml")
        foreign = plan([kept, gpus], job=cuda, code=None)
        self.assertNotEqual(foreign.code, OK)
        self.assertIn("was measured on other hardware", foreign.err)
        self.assertIn("NVIDIA A10", foreign.err)
        self.assertIn("has no profile of GPUs", plan([kept], job=cuda, code=None).err)

    def test_a_measurement_ends_with_the_command_that_asked_for_it(self):
        planning = self.start("plan", self.job({"layout.dp": 1}))
        self.wait_until(lambda: "measuring this machine" in "".join(planning.err), "it measures")
        planning.process.kill()
        planning.wait()
        self.assertEqual(self.wait_until_nothing_runs(5), {}, "nobody reads what is measured")

    def test_a_folder_without_a_drive_is_a_clear_error(self):
        missing = self.folder / "nowhere"
        result = self.terrace("profile", "--threads", "1", "--nvme", missing, code=None)
        self.assertNotEqual(result.code, OK)
        self.assertIn(str(missing), result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
