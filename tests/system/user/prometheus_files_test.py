#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus is valid, its rules do what their tests say, and all that it names exists."""
import re
import shutil
import subprocess
import tempfile
import unittest

from monitoring import DEPLOY, NAME, metric_table
from support import ROOT

RUNBOOKS = ROOT / "docs/runbooks.md"


@unittest.skipUnless(shutil.which("promtool"), "promtool (Debian package prometheus) is not installed")
class PromtoolTest(unittest.TestCase):
    def check(self, *command, folder=DEPLOY):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_configurations_are_valid(self):
        self.check("promtool", "check", "config", "prometheus.yml")
        self.check("promtool", "check", "rules", "rules.yml", "alerts.yml")

    def test_all_but_the_discovery_of_kubernetes_is_valid(self):
        """Debian's promtool is built without Kubernetes, so that its section is replaced by one that it knows."""
        with tempfile.TemporaryDirectory() as folder:
            text = (DEPLOY / "prometheus-kubernetes.yml").read_text()
            text, count = re.subn(r"kubernetes_sd_configs:\n( +)- role: (pod|endpoints)\n", r"file_sd_configs:\n\1- files: [none.yml]\n", text)
            self.assertEqual(count, 2)
            for name in ("rules.yml", "alerts.yml"):
                shutil.copy(DEPLOY / name, folder)
            (DEPLOY.__class__(folder) / "prometheus.yml").write_text(text)
            self.check("promtool", "check", "config", "prometheus.yml", folder=folder)

    def test_rules_do_what_their_tests_say(self):
        self.check("promtool", "test", "rules", "rules_test.yml")

    @unittest.skipUnless(shutil.which("amtool"), "amtool (Debian package prometheus-alertmanager) is not installed")
    def test_routes_are_valid(self):
        self.check("amtool", "check-config", "alertmanager.yml")


class NamesTest(unittest.TestCase):
    def setUp(self):
        self.alerts = (DEPLOY / "alerts.yml").read_text()
        self.names = re.findall(r"- alert: (\w+)", self.alerts)

    def test_every_alert_has_a_runbook_with_its_three_parts(self):
        sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOKS.read_text(), re.S | re.M))
        self.assertEqual(sorted(sections), sorted(self.names))
        for name in self.names:
            self.assertIn(f"/runbooks.md#{name.lower()}\"", self.alerts)
            for part in ("**Means.**", "**Look.**", "**Do.**"):
                self.assertIn(part, sections[name], name)

    def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(self):
        tests = (DEPLOY / "rules_test.yml").read_text()
        for name in self.names:
            self.assertRegex(tests, rf"alertname: {name}\n\s+eval_time: \w+\n\s+exp_alerts:\n\s+- exp_labels", name)

    def test_every_series_and_label_of_the_rules_exists(self):
        table, recorded = metric_table(), set(re.findall(r"record: (\S+)", (DEPLOY / "rules.yml").read_text()))
        for text in (self.alerts, (DEPLOY / "rules.yml").read_text()):
            code = "\n".join(line for line in text.splitlines() if not re.match(r"\s*(#|summary|runbook_url)", line))
            for name in set(NAME.findall(code)):
                self.assertTrue(name in table or name in recorded, f"{name} is no metric")
            for name, labels in re.findall(r"(terrace_\w+)\{([^}]*)\}", code):
                for label in re.findall(r"(\w+)(?:=|!)", labels):
                    self.assertIn(label, table[name]["labels"], f"{name} has no label {label}")


if __name__ == "__main__":
    unittest.main()
