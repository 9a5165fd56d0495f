#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md has the tables of metrics as the programs print them; --update writes them anew."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("TERRACE_BIN", ROOT / "build/release/bin"))
PAGE = ROOT / "docs/metrics.md"
PROGRAMS = ("terrace-coordinator", "terrace-worker")


def printed(program, *options):
    return subprocess.run([BIN / program, "metrics", *options], capture_output=True, text=True, check=True, timeout=30).stdout


def part(program):
    return re.compile(rf"(?<=<!-- {program} metrics -->\n)(.*?)(?=<!-- end -->)", re.S)


class MetricsPageTest(unittest.TestCase):
    def test_the_page_has_what_the_programs_print(self):
        for program in PROGRAMS:
            written = part(program).search(PAGE.read_text()).group(1)
            self.assertEqual(written, printed(program), f"write it anew: {pathlib.Path(__file__).name} --update")

    def test_json_has_the_same_rows(self):
        for program in PROGRAMS:
            rows = json.loads(printed(program, "-o", "json"))["metrics"]
            names = re.findall(r"^\| `(\w+)` \|", printed(program), re.M)
            self.assertEqual([row["name"] for row in rows], names)
            self.assertEqual(len(set(names)), len(names), "a name stands for one metric")
            self.assertTrue(all(row["type"] in ("gauge", "counter", "histogram") for row in rows))


def update():
    page = PAGE.read_text()
    for program in PROGRAMS:
        page = part(program).sub(lambda _, text=printed(program): text, page, count=1)
    PAGE.write_text(page)


if __name__ == "__main__":
    update() if sys.argv[1:] == ["--update"] else unittest.main()
