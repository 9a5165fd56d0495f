#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists of jobs as users meet them: newest first, page by page, by state, and after a restart of the coordinator."""
import re
import signal
import unittest

from service import ServiceTest
from support import USAGE

ENDLESS = {"train.steps": 1_000_000}


class ListTest(ServiceTest):
    def ids(self, *options):
        return [line.split()[0] for line in self.cli("ls", *options).out.splitlines() if re.match(r"\S+-\d+ ", line)]

    def listed(self, *options):
        return self.cli("ls", *options, "-o", "json").json()

    def test_lists_are_paged_filtered_and_survive_a_restart(self):
        coordinator, _ = self.start_service(1)
        runs = self.submit(self.job(ENDLESS))
        self.wait_for_state(runs, "RUNNING")
        waiting = [self.submit(self.job({"train.steps": 2})) for _ in range(4)]
        for job in waiting[:2]:
            self.cli("cancel", job)
        active = [waiting[3], waiting[2], runs]
        everything = [*reversed(waiting), runs]

        with self.subTest("the newest first"):
            self.assertEqual(self.ids(), active)
            self.assertEqual(self.ids("--all"), everything)
        with self.subTest("page by page"):
            shown = self.cli("ls", "--all", "--limit", "2").out
            self.assertRegex(shown, r"(?m)^2 of 5 jobs \((2 QUEUED|1 RUNNING|2 CANCELLED|, )+\), the newest first; --before \d+ shows the "
                                    r"next ones, --limit 0 all, --state and --owner fewer$")
            before = re.search(r"--before (\d+)", shown).group(1)
            self.assertEqual(self.ids("--all", "--limit", "2"), everything[:2])
            self.assertEqual(self.ids("--all", "--before", before), everything[2:])
            self.assertEqual(self.ids("--all", "--limit", "0"), everything)
            self.assertNotIn("newest first", self.cli("ls", "--all").out, "nothing is left out")
        with self.subTest("by state, in any case"):
            self.assertEqual(self.ids("--state", "running"), [runs])
            self.assertEqual(self.ids("--state", "CANCELLED,RUNNING"), [waiting[1], waiting[0], runs])
            self.assertEqual(self.ids("--owner", "nobody"), [])
        with self.subTest("as JSON all of it, or a page with where it goes on"):
            whole = self.listed("--all")
            self.assertEqual([job["id"] for job in whole["jobs"]], everything)
            self.assertEqual((whole["matching"], whole["next"]), (5, 0))
            self.assertIn("plan", whole["jobs"][0])
            page = self.listed("--all", "--limit", "3")
            rest = self.listed("--all", "--before", str(page["next"]))
            self.assertEqual([job["id"] for job in page["jobs"] + rest["jobs"]], everything)
        with self.subTest("what is no state, and no number"):
            self.assertIn("RUNNING", self.cli("ls", "--state", "runing", code=USAGE).err)
            self.cli("ls", "--limit", "-1", code=USAGE)
            self.cli("ls", "--before", "0", code=USAGE)

        coordinator.signal(signal.SIGKILL)
        coordinator.wait()
        self.start_coordinator()
        with self.subTest("after a restart"):
            self.assertEqual(self.ids("--all"), everything)
            self.assertEqual(self.status(waiting[0])["state"], "CANCELLED", "from the store")
            self.assertEqual(self.ids("--state", "CANCELLED", "--limit", "1"), [waiting[1]])
        self.cli("cancel", "--force", runs, *waiting[2:])
        self.wait_until(lambda: not self.rank_pids(), "its rank has ended")


if __name__ == "__main__":
    unittest.main()
