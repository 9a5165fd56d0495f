#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace evaluate`: its sizes and rows are what `terrace plan` says with the same keys, here, on paper and at a coordinator."""
import os
import pty
import subprocess
import unittest
from html.parser import HTMLParser

import browser
from browser import Browser
from service import ServiceTest
from support import BIN, GPT, LLAMA, INVALID_INPUT, RESOURCES, USAGE, UNAVAILABLE

TIGHT = {"resources.device_memory": "104MiB", "model.config": {**GPT, "n_positions": 4096}}
# Of 7.4e9 parameters, which no device holds alone, in few layers, which are soon compiled.
WIDE = {**LLAMA, "vocab_size": 32_000, "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 8,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192}
COLUMN_PIXELS = 150  # that a column of sentences has at least
CONTRAST = 4.5  # of small text, as WCAG AA has it
# The worst contrast of a text that is shown on the page itself with the page.
WORST_CONTRAST = """
const light = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(c => c / 255)
  .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const paper = light(getComputedStyle(document.body).backgroundColor);
return Math.min(...[...document.querySelectorAll('h1, h2, p, td, th, dt, dd, svg text:not(.small)')].map(element => {
  const style = getComputedStyle(element), ink = light(element.matches('text') ? style.fill : style.color);
  return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
}));
"""
# Labels of bars that a later line crosses, or that have no rim of the paper's colour.
CROSSED_LABELS = """
const paper = getComputedStyle(document.body).backgroundColor;
return [...document.querySelectorAll('svg text.label')].filter(label => {
  const style = getComputedStyle(label), lines = [...label.closest('svg').querySelectorAll('line')];
  return style.stroke !== paper || !style.paintOrder.startsWith('stroke') ||
    lines.some(line => label.compareDocumentPosition(line) & Node.DOCUMENT_POSITION_FOLLOWING);
}).length;
"""
EVALUATE_SECONDS = 300  # on a busy machine; else a tenth


class WellFormed(HTMLParser):
    """Counts what a page refers to outside of itself, and its tables' rows."""

    def __init__(self):
        super().__init__()
        self.outside, self.rows = [], 0

    def handle_starttag(self, tag, attributes):
        self.rows += tag == "tr"
        self.outside += [value for name, value in attributes if name in ("src", "href")]
        if tag == "script":
            self.outside.append("script")


class EvaluateTest(ServiceTest):
    def evaluate(self, job, *options, code=0, **more):
        limit = () if "--seconds" in options else ("--seconds", EVALUATE_SECONDS - 20)
        return self.terrace("evaluate", job, "-o", "json", *limit, *options, code=code, seconds=EVALUATE_SECONDS, **more)

    def row(self, evaluation, group, name):
        return next(row for row in evaluation["techniques"] if (row["group"], row["name"]) == (group, name))

    def check_edge(self, changes, size, key, options=()):
        """The size fits; the next larger is refused by its bytes."""
        self.assertGreater(size["value"], 0, size)
        fits = self.job({**changes, **size["settings"]})
        self.terrace("plan", fits, "-o", "json", *options)
        over = {**size["settings"], key: size["refused"]}
        if key == "layout.micro_batch":  # as the size's own batch is made: whole micro-batches of every rank
            ranks, batch = size.get("ranks", 1), changes.get("train.global_batch", 8)
            over["train.global_batch"] = -(-batch // (size["refused"] * ranks)) * size["refused"] * ranks
        refused = self.terrace("plan", self.job({**changes, **over}), *options, code=RESOURCES)
        self.assertIn("per rank", refused.err)

    @staticmethod
    def numbers(settings):
        return {key: int(value) if str(value).isdigit() else value for key, value in settings.items()}

    def test_sizes_and_rows_are_what_plan_says(self):
        self.keep_profile()
        evaluation = self.evaluate(self.job(TIGHT)).json()
        self.assertTrue(evaluation["complete"])
        none, planned = evaluation["none"], evaluation["planned"]
        for row in (none, planned, self.row(evaluation, "recompute", "block")):
            base = {**TIGHT, **self.numbers(row["settings"])}
            for key, name in (("layout.micro_batch", "micro_batch"), ("data.sequence_length", "sequence_length")):
                size = {**row[name], "settings": self.numbers(row[name]["settings"])}
                self.assertFalse(size["at_least"], row["name"])
                self.check_edge(base, size, key)
        self.assertGreater(planned["micro_batch"]["value"], none["micro_batch"]["value"])
        for group, name in (("recompute", "block"), ("offload to host", "optimizer")):
            row = self.row(evaluation, group, name)
            plan = self.terrace("plan", self.job({**TIGHT, **self.numbers(row["settings"])}), "-o", "json").json()
            device = next(memory for memory in plan["memory"] if memory["tier"] == "DEVICE")
            self.assertEqual(row["device_bytes"], device["arena_bytes"] + device["external_bytes"])
            self.assertAlmostEqual(row["time"]["step_seconds"], plan["time"]["step_seconds"], delta=0.05 * plan["time"]["step_seconds"])
            self.assertAlmostEqual(row["memory_ratio"], row["device_bytes"] / none["device_bytes"])

    def test_on_paper_with_several_ranks(self):
        changes = {"model.config": WIDE, "train.global_batch": 16, "train.precision": "bf16", "data.sequence_length": 4096}
        evaluation = self.evaluate(self.job(changes), "--cluster", "h100x8:1", "--brief").json()
        self.assertEqual((evaluation["ranks"], evaluation["device_limit_bytes"]), (8, 81559 * 2**20))
        self.assertFalse(evaluation["none"]["fits"])
        self.assertTrue(evaluation["planned"]["fits"])
        sharing = [self.row(evaluation, "ZeRO", f"stage {stage}") for stage in (1, 2, 3)]
        held = [evaluation["none"]["state_bytes_per_parameter"]] + [row["state_bytes_per_parameter"] for row in sharing]
        self.assertEqual(held, sorted(held, reverse=True))
        self.assertEqual(self.row(evaluation, "tensor parallel", "8 ranks")["layout"]["tensor_parallel"], 8)
        self.assertGreater(self.row(evaluation, "offload to NVMe", "all")["nvme_bytes"], 0)
        self.assertTrue(any("resources.nvme has to name a folder" in remark for remark in evaluation["remarks"]))
        size = evaluation["planned"]["micro_batch"]
        self.check_edge(changes, {**size, "ranks": 8, "settings": self.numbers(size["settings"])}, "layout.micro_batch", ("--cluster", "h100x8:1"))

    def test_the_table_and_the_page(self):
        page = self.folder / "page.html"
        result = self.terrace("evaluate", self.job(TIGHT), "--brief", "--html", page,
                              seconds=EVALUATE_SECONDS)
        self.assertLessEqual(max(len(line) for line in result.out.splitlines()), 80, result.out)
        for words in ("largest sizes that fit", "cost of each technique, against none", "memory of the rank that needs most",
                      "left out, and why", "tensor parallel: layout: got tp 2", "a CPU rank's device memory is a part of the host's"):
            self.assertIn(words, " ".join(result.out.split()))
        self.assertIn(f"wrote {page}", result.err)
        html = WellFormed()
        html.feed(page.read_text())
        self.assertEqual(html.outside, [])
        self.assertGreater(html.rows, 15)
        self.assertLess(page.stat().st_size, 200_000)

    @unittest.skipIf(browser.missing(), browser.missing())
    def test_the_pages_on_a_phone_and_in_the_dark(self):
        evaluation, plan = self.folder / "evaluation.html", self.folder / "plan.html"
        job = self.job({**TIGHT, "resources.device_memory": "100MiB"})
        self.terrace("evaluate", job, "--brief", "--seconds", "8", "--html", evaluation, seconds=EVALUATE_SECONDS)
        self.terrace("plan", self.job(TIGHT), "--html", plan)
        window = Browser(self, 400, 900)
        try:
            window.command("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=True)
            for page in (evaluation, plan):
                self.look_at(window, page)
            window.open(evaluation.as_uri())
            self.assertGreater(window.run("return document.querySelectorAll('svg text.label').length"), 20)
        finally:
            window.quit()

    def look_at(self, window, page):
        for scheme, is_dark in (("light", False), ("dark", True)):
            window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            window.open(page.as_uri())
            paper = window.run("return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
            self.assertEqual(max(paper[:3]) < 64, is_dark, (page.name, paper))
            self.assertGreaterEqual(window.run(WORST_CONTRAST), CONTRAST, (page.name, scheme))
            self.assertEqual(window.run(CROSSED_LABELS), 0, (page.name, scheme))
        self.assertLessEqual(window.run("return document.documentElement.scrollWidth"), 400, page.name)
        narrowest = window.run("return Math.min(...[...document.querySelectorAll('div.wide :is(td:first-child, "
                               "td:last-child):not(.n)')].map(cell => cell.clientWidth))")
        self.assertGreaterEqual(narrowest, COLUMN_PIXELS, page.name)

    def test_a_coordinator_evaluates_for_its_workers(self):
        self.keep_profile()
        self.start_coordinator()
        self.start_worker("one")
        job, page = self.job(TIGHT), self.folder / "page.html"
        there = self.cli("evaluate", job, "--brief", "-o", "json", "--html", page, seconds=EVALUATE_SECONDS).json()
        here = self.evaluate(job, "--brief").json()
        for name in ("none", "planned"):
            self.assertEqual(there[name]["device_bytes"], here[name]["device_bytes"])
            self.assertEqual(there[name]["micro_batch"]["value"], here[name]["micro_batch"]["value"])
        self.assertIn("Evaluation of", page.read_text())
        self.assertEqual(self.cli("ls", "-a", "-o", "json").json().get("jobs", []), [], "an evaluation is no job")
        refused = self.cli("evaluate", self.job({"layout.tp": 3}), code=INVALID_INPUT)
        self.refused(refused, "got tp 3")

    def test_a_terminal_shows_how_far_it_is(self):
        main, end = pty.openpty()
        job = self.job(TIGHT)
        process = subprocess.Popen([BIN / "terrace", "evaluate", str(job), "--brief"], stdout=subprocess.DEVNULL, stderr=end,
                                   env=self.environment)
        os.close(end)
        said = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:
                break
            if not part:
                break
            said += part
        os.close(main)
        self.assertEqual(process.wait(EVALUATE_SECONDS), 0)
        self.assertRegex(said.decode(), r"\[1 of \d+\] the plan of the job as it is")
        self.assertRegex(said.decode(), r"\[\d+ of \d+\] recompute block")
        self.assertTrue(said.endswith(b"\r\x1b[K"), "the line is wiped at the end")

    def test_it_ends_in_time_with_what_it_found(self):
        changes = {"model.config": "llama-3.1-70b", "train.global_batch": 256, "train.precision": "bf16", "data.sequence_length": 8192}
        result = self.evaluate(self.job(changes), "--cluster", "h100x8:8", "--seconds", "4")
        evaluation = result.json()
        self.assertFalse(evaluation["complete"])
        self.assertTrue(evaluation["planned"]["fits"])
        self.assertLess(result.seconds, 60)
        self.assertTrue(any("time was over" in row["impossible"] for row in evaluation["techniques"]) or
                        evaluation["planned"]["micro_batch"]["at_least"])

    def test_what_is_wrong_is_refused_as_by_plan(self):
        for changes, words in (({"layout.tp": 3}, "got tp 3"), ({"train.global_batch": 0}, "train.global_batch"),
                               ({"model.config": "nothing"}, "model.config")):
            job = self.job(changes)
            plan = self.terrace("plan", job, code=INVALID_INPUT)
            refused = self.terrace("evaluate", job, code=INVALID_INPUT)
            self.refused(refused, words)
            self.assertEqual(refused.err, plan.err)
        self.refused(self.terrace("evaluate", self.folder / "absent.yaml", code=3), "cannot read the job spec")
        self.refused(self.terrace("evaluate", self.job(), "--seconds", "0", code=USAGE), "--seconds")
        self.refused(self.terrace("evaluate", self.job(), "--cluster", "h100x8:2", "--profile", "x", code=USAGE), "--profile")
        self.refused(self.terrace("evaluate", self.job(), "--cluster", "h999x8:2", code=None), "h999")
        away = self.terrace("--coordinator", "127.0.0.1:1", "evaluate", self.job(), code=UNAVAILABLE)
        self.refused(away, "no coordinator answers")


if __name__ == "__main__":
    unittest.main()
