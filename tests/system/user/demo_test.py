#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo, as a person types it: set-up, build, some minutes of training, a sample. It learns clearly."""
import re
import unittest

from support import ROOT, TerraceTest

LEARNED = 2.0  # nats a byte
DEMO_SECONDS = 1800


class DemoTest(TerraceTest):
    def test_demo_learns_and_stays_finished(self):
        command = [str(ROOT / "deploy/demo.sh"), str(self.folder / "demo")]
        first = self.type(command)
        loss = float(re.search(r"validation loss +([\d.]+)", first.out).group(1))
        print(f"\n  validation loss {loss} after {first.seconds:.0f} s")
        self.assertLess(loss, LEARNED)
        sample = first.out.split("a sample:\n", 1)[1]
        self.assertTrue(sample.startswith("And it came to pass"))
        self.assertGreater(len(sample), 250)
        self.assertGreater(len(re.findall(r"\b(the|and|of|unto|in)\b", sample)), 5, sample)

        again = self.type(command)
        self.assertIn("SUCCEEDED", again.out)
        self.assertLess(again.seconds, first.seconds / 2)
        self.assertEqual(again.out.split("a sample:\n", 1)[1], sample)

    def type(self, command):
        result = self.run_command(command).wait(DEMO_SECONDS)
        self.assertEqual(result.code, 0, str(result))
        return result


if __name__ == "__main__":
    unittest.main(verbosity=2)
