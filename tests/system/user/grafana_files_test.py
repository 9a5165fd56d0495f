#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboards in deploy/grafana are what their table says, what Grafana takes when it loads them, and name only what exists.

Where Python has grafana-foundation-sdk (PyPI; Grafana's published schema as classes) each dashboard also goes through it and comes out
as it was: a key that the schema does not know is lost on the way.
"""
import collections
import json
import re
import sys
import unittest

from dashboards import GRAFANA, RECORDED, UNITS, dashboards, queries, unit_of
from monitoring import DEPLOY, NAME, metric_table

try:
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard
except ImportError:
    Dashboard = None
sys.path.insert(0, str(GRAFANA))
import make_dashboards  # noqa: E402


class LoadedTest(unittest.TestCase):
    def test_what_is_committed_is_what_the_table_says(self):
        written = {path.stem: path.read_text() for path in (GRAFANA / "dashboards").glob("*.json")}
        self.assertEqual(written, {uid: make_dashboards.text(uid) for uid in make_dashboards.DASHBOARDS}, "write them anew: make_dashboards.py")

    def test_uids_and_titles_are_valid_and_differ(self):
        for key in ("uid", "title"):
            found = [board[key] for board in dashboards()]
            self.assertEqual(len(set(found)), len(found))
        for board in dashboards():
            self.assertRegex(board["uid"], r"^[a-zA-Z0-9_-]{1,40}$")

    def test_panels_have_numbers_of_their_own_and_do_not_overlap(self):
        for board in dashboards():
            numbers = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(set(numbers)), len(numbers))
            taken = collections.Counter()
            for panel in board["panels"]:
                place = panel["gridPos"]
                self.assertTrue(0 <= place["x"] and place["x"] + place["w"] <= 24, panel["title"])
                taken.update((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"]))
                self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]))
            self.assertEqual(max(taken.values()), 1, board["uid"])

    def test_an_empty_panel_says_why(self):
        for board in dashboards():
            for panel in board["panels"]:
                reason = panel["fieldConfig"]["defaults"]["noValue"]
                self.assertRegex(reason, r"^[A-Z].* .*[^.]$", f"{board['uid']}: {panel['title']}")
        reason_of = make_dashboards.reason_if_empty
        self.assertIn("No energy", reason_of([("job:terrace_tokens_per_joule:rate5m", "")]))
        self.assertIn("No evaluation", reason_of([('terrace_job_eval_loss{job=~"$job"}', "")]))
        both = [('terrace_job_loss{job=~"$job"}', ""), ('terrace_job_eval_loss{job=~"$job"}', "")]
        self.assertIn("No job", reason_of(both), "it is empty only where neither has a value")

    def test_variables_that_are_used_are_declared_and_the_other_way_round(self):
        builtin = {"__rate_interval", "__range"}
        for board in dashboards():
            declared = {variable["name"] for variable in board["templating"]["list"]}
            used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]) + json.dumps(board["templating"]["list"]))) - builtin
            self.assertEqual(used - {"__all"}, declared, board["uid"])

    def test_the_datasource_is_the_one_that_is_provisioned(self):
        provisioned = (GRAFANA / "provisioning/datasources/terrace.yml").read_text()
        for board in dashboards():
            chosen = board["templating"]["list"][0]
            self.assertEqual(chosen["type"], "datasource")
            self.assertIn(f"uid: {chosen['current']['value']}\n", provisioned)

    @unittest.skipUnless(Dashboard, "this Python has no grafana-foundation-sdk")
    def test_each_dashboard_is_of_grafanas_published_schema(self):
        plugins.register_default_plugins()
        for board in dashboards():
            through = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))
            self.assert_kept(board, through, board["uid"])

    def assert_kept(self, before, after, where):
        """All of it is there still; the schema may add defaults."""
        if isinstance(before, dict):
            self.assertLessEqual(set(before), set(after), where)
            for key, value in before.items():
                self.assert_kept(value, after[key], f"{where}.{key}")
        elif isinstance(before, list):
            self.assertEqual(len(before), len(after), where)
            for index, value in enumerate(before):
                self.assert_kept(value, after[index], f"{where}[{index}]")
        else:
            self.assertEqual(before, after, where)


class NamesTest(unittest.TestCase):
    def setUp(self):
        self.table = metric_table()
        rules = (DEPLOY / "rules.yml").read_text()
        self.assertEqual(set(re.findall(r"record: (\S+)", rules)), set(RECORDED))

    def test_every_series_and_label_exists(self):
        for where, _, target in queries():
            names = NAME.findall(target["expr"])
            self.assertTrue(names or "up{" in target["expr"], where)
            for name in names:
                self.assertTrue(name in self.table or name in RECORDED, where)
            for name, labels in re.findall(r"\b(terrace_\w+)\{([^}]*)\}", target["expr"]):
                for label in re.findall(r'(\w+)(?:=~|!=|=)', labels):
                    known = [*self.table[name]["labels"], "instance"] if name in self.table else ["job", "rank", "instance"]
                    self.assertIn(label, known, where)

    def test_legends_name_labels_that_the_query_keeps(self):
        for where, _, target in queries():
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            by = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            if by:
                self.assertLessEqual(wanted, set(by[0].replace(" ", "").split(",")), where)
            elif name := next((name for name in NAME.findall(target["expr"]) if name in self.table), None):
                self.assertLessEqual(wanted, {*self.table[name]["labels"], "instance"}, where)

    def test_legends_tell_series_of_several_jobs_and_ranks_apart(self):
        for where, _, target in queries():
            expression = target["expr"]
            by = re.findall(r"\bby \(([^)]*)\)", expression)
            name = next((name for name in NAME.findall(expression) if name in self.table), None)
            if by:
                kept = set(by[0].replace(" ", "").split(",")) - {"le"}
            elif re.match(r"(sum|max|min|avg|count)\(", expression) or name is None:
                continue
            else:
                kept = set(self.table[name]["labels"]) - set(re.findall(r'(\w+)="', expression))
            self.assertLessEqual(kept, set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])), f"{where}: {expression}")

    def test_each_panels_unit_is_that_of_its_metrics(self):
        for where, unit, target in queries():
            self.assertIn(unit, UNITS, where)
            self.assertEqual(UNITS[unit], unit_of(target["expr"], self.table), where)


if __name__ == "__main__":
    unittest.main()
