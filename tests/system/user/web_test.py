#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The web page of the coordinator, in headless Chromium: list, filters, a job with its charts, ranks, logs and spec, queue,
nodes, comparison, pausing, resuming and cancelling with a token, text from outside that tries to be a script, a coordinator that goes away."""
import concurrent.futures
import http.client
import json
import os
import pty
import re
import socket
import time
import unittest
import urllib.error
import urllib.request

import browser
from browser import DOWN, ENTER, TAB, Browser
from service import ServiceTest, free_port
from support import BIN, GPT, learnable_text

ASSETS_MAX_BYTES = 200_000
TOKEN = "the-token-of-an-operator-4711"
EVIL = "<img src=x onerror=window.hacked=1>"
ENDLESS = {"train.steps": 1_000_000}
CHART_WITH_INK = """
const canvas = document.querySelector(arguments[0] + ' canvas');
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
const colours = new Set();
for (let i = 0; i < pixels.length; i += 4) {
  if (pixels[i + 3] > 200) colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
}
return colours.size;
"""


class WebTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.page_port = free_port()
        self.page = f"http://127.0.0.1:{self.page_port}"
        token = self.write("token", TOKEN + "\n")
        token.chmod(0o600)
        self.coordinator_options = ("--web-listen", f"127.0.0.1:{self.page_port}", "--web-token-file", token)

    def get(self, path, **options):
        with urllib.request.urlopen(urllib.request.Request(self.page + path, **options), timeout=30) as response:
            return response.headers, response.read()


class PageTest(WebTest):
    """What needs no browser."""

    def asset_names(self):
        """All that the page refers to, found from one file to the next."""
        names, unread = set(), {"index.html"}
        while unread:
            name = unread.pop()
            text = self.get("/" if name == "index.html" else f"/assets/{name}")[1].decode()
            names.add(name)
            unread |= set(re.findall(r'[./"](?:assets/)?([\w.]+\.(?:js|css|svg))"', text)) - names
        return names

    def test_the_page_is_small_and_holds_no_script_or_style_in_line(self):
        self.start_coordinator()
        names = self.asset_names()
        self.assertLessEqual({"main.js", "job.js", "compare.js", "charts.js", "uPlot.iife.min.js", "style.css"}, names)
        texts = {name: self.get("/" if name == "index.html" else f"/assets/{name}")[1].decode() for name in names}
        self.assertLess(sum(len(text.encode()) for text in texts.values()), ASSETS_MAX_BYTES)
        for name, text in texts.items():
            with self.subTest(name):
                if name.startswith("uPlot"):
                    continue
                self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(")
                self.assertNotRegex(text, r"https?://(?!www\.w3\.org/2000/svg)", "nothing is fetched from elsewhere")
        self.assertNotRegex(texts["index.html"], r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)")

    def test_headers_forbid_what_is_not_the_pages_own(self):
        self.start_coordinator()
        policy = self.get("/")[0]["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)

    def test_ten_thousand_requests_and_readers_that_are_slow_delay_no_heartbeat(self):
        self.start_service(1)
        job = self.submit(self.job(ENDLESS, name="endless"))
        self.wait_for_steps(job, 2)
        host = b" HTTP/1.1\r\nHost: localhost\r\n"
        slow = []
        for sent in (b"GET /api/v1/jo", f"GET /api/v1/jobs/{job}/plan".encode() + host + b"\r\n",  # half a request; answers that
                     (f"GET /api/v1/jobs/{job}/history".encode() + host + b"\r\n") * 50,            # nobody reads; half a body
                     f"POST /api/v1/jobs/{job}/cancel".encode() + host + b"Content-Length: 1000000\r\n\r\nabc") * 10:
            slow.append(socket.create_connection(("127.0.0.1", self.page_port)))
            slow[-1].sendall(sent)
        paths = ("/api/v1/jobs", "/", "/api/v1/nodes", f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/history")

        def ask(path):
            connection = http.client.HTTPConnection("127.0.0.1", self.page_port, timeout=30)
            for _ in range(500):
                connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                self.assertEqual(answer.status, 200)
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            asked = [pool.submit(ask, path) for path in paths * 4]
            self.assert_trains_while(job, asked)
        for connection in slow:
            connection.close()
        self.cli("cancel", "--force", job)

    def test_errors_are_sentences_in_json(self):
        self.start_coordinator()
        for path, status in (("/api/v1/jobs/no-such-1", 404), ("/api/v1/jobs?limit=-1", 400), ("/api/v1/jobs?state=EVIL", 400),
                             ("/api/v1/nothing", 404)):
            with self.subTest(path), self.assertRaises(urllib.error.HTTPError) as raised:
                self.get(path)
            self.assertEqual(raised.exception.code, status, path)
            self.assertGreater(len(json.load(raised.exception)["error"]), 10, path)


@unittest.skipIf(browser.missing(), browser.missing())
class BrowserTest(WebTest):
    def tearDown(self):
        if hasattr(self, "browser"):
            self.browser.quit()
        super().tearDown()

    def open_page(self, path="", **options):
        self.browser = Browser(self, **options)
        self.browser.open(f"{self.page}/{path}")
        return self.browser

    def hostile_job(self, changes, name):
        """A job whose spec tries to be a script: in a comment and in the name of a file of data."""
        if not (self.folder / f"{EVIL}.txt").exists():
            self.write(f"{EVIL}.txt", learnable_text(60_000))
        path = self.job({"data.train": f"../{EVIL}.txt", **changes}, name=name)
        path.write_text(f"# <script>window.hacked=1</script> \u202e{EVIL}\n" + path.read_text())
        return path

    def nothing_ran(self):
        self.assertIsNone(self.browser.run("return window.hacked ?? null"), "text from outside was run as a script")
        self.assertEqual(self.browser.run("return document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.complaints(), [])

    def chart_is_drawn(self, title, points):
        find = ("const f = [...document.querySelectorAll('figure')].find(f => f.querySelector('strong').innerText === "
                "arguments[0]); if (f) f.id = 'wanted-chart'; return f ? Number(f.dataset.points) : -1")
        self.browser.run("document.getElementById('wanted-chart')?.removeAttribute('id')")
        self.wait_until(lambda: self.browser.run(find, title) >= points, f"chart {title} has {points} points", 60)
        self.wait_until(lambda: self.browser.run("return document.querySelector('#wanted-chart canvas') !== null"),
                        f"chart {title} has a canvas")
        self.wait_until(lambda: self.browser.run(CHART_WITH_INK, "#wanted-chart") >= 3, f"chart {title} is drawn", 10)

    def test_from_the_list_to_a_job_and_its_end(self):
        self.start_service(2)
        short = self.submit(self.job({"train.steps": 60, "train.eval_every_steps": 20}, name="short"))
        self.wait_for_state(short, "SUCCEEDED")
        path = self.hostile_job({**ENDLESS, "train.eval_every_steps": 100, "checkpoint.every_steps": 200, "resources.nodes": 2,
                                 "train.trace_steps": 2, "layout.offload": {"optimizer": "host"}}, "endless")
        endless = self.submit(path)
        waiting = self.submit(self.job({"train.steps": 10}, name="waiting"))
        self.wait_for_steps(endless, 300)
        page = self.open_page()

        with self.subTest("list"):
            page.wait_for_text("#jobs", endless)
            self.assertEqual(page.run("return [...document.querySelectorAll('#jobs tbody th')].map(e => e.innerText)"),
                             [waiting, endless, short])
            self.assertIn("waiting for devices", page.text("#jobs"))
            cut = page.run("for (const line of document.querySelectorAll('#jobs .under')) line.textContent = '1,234,567 words and 12 more';"
                           "return ['scrollWidth', 'clientWidth'].map(name => document.querySelector('#jobs table').parentNode[name])")
            self.assertEqual(cut[0], cut[1], "no column is cut at 1280 pixels, whatever stands in them")
            page.choose("#state", "ended")
            page.wait_for_text("#shown", "1 to 1 of 1")
            self.assertIn(short, page.text("#jobs"))
            page.choose("#state", "")
            page.type("#text", "endl")
            page.wait_for_text("#shown", "1 to 1 of 1")
            self.assertIn("q=endl", page.run("return location.hash"))
            page.type("#text", "no such")
            page.wait_for_text("#shown", "No job matches")
            page.type("#text", "endl")
        page.click_link(endless)
        with self.subTest("head"):
            page.wait_for_text("h1", endless)
            page.wait_for_text("#summary", "running")
            self.assertEqual(page.run("return document.activeElement.tagName"), "H1", "the focus goes to the new page")
            before = page.text("#numbers")
            self.wait_until(lambda: page.text("#numbers") != before, "the numbers change by themselves")
        with self.subTest("curves"):
            for title, points in (("Loss", 30), ("Learning rate", 30), ("Gradient norm", 30), ("Speed", 30), ("Step time", 30),
                                  ("Checkpoint write time", 1), ("Memory on device", 2)):
                self.chart_is_drawn(title, points)
            page.click("#curves input[aria-label='Loss: log scale']")
            self.chart_is_drawn("Loss", 30)
            page.click("#curves figure summary")
            table = page.wait_for_text("#curves .numbers table", "train")
            self.assertGreater(len(table.splitlines()), 10, "the chart is also a table")
        with self.subTest("plan"):
            self.assertRegex(page.text("#plan"), r"device: arena\s+[\d.]+ MiB\s+[\d.]+ MiB\s+0 %")
            self.assertRegex(page.text("#plan"), r"step time\s+[\d.]+ .?s\s+[\d.]+ .?s")
            page.click("#plan .report summary")
            page.find("#plan iframe")
            self.assertEqual(page.run("return document.querySelector('iframe').getAttribute('sandbox')"), "")
            report = self.get(f"/api/v1/jobs/{endless}/plan")[1].decode()
            self.assertRegex(report, r"As it was measured</h3>\s+<p>Step 2 of rank 0: <b>[\d.]+ .?s</b>")
            self.assertIn("planned at the peak", report)
            self.assertIn("what would lower it", report)
        with self.subTest("ranks by key"):
            page.find("#ranks button")
            page.run("document.querySelector('#ranks button').focus()")
            page.press(ENTER)
            page.wait_for_text("#ranks", "worker-0, device 0")
            page.press(DOWN)
            page.wait_for_text("#ranks", "worker-1, device 0")
        with self.subTest("events"):
            page.wait_for_text("#events", "checkpoint of step")
            page.wait_for_text("#events", "evaluation at step")
        with self.subTest("logs"):
            page.run("document.querySelector('#logs').scrollIntoView()")
            page.wait_for_text("#logs pre", "rank 0: step")
            seen = len(page.text("#logs pre"))
            self.wait_until(lambda: len(page.text("#logs pre")) > seen, "the log goes on by itself")
            page.choose("#logs select", "1")
            page.wait_for_text("#logs pre", "rank 1")
        with self.subTest("spec"):
            self.assertIn("<script>window.hacked=1</script> <U+202E>" + EVIL, page.text("#spec pre"))
            self.assertRegex(page.text("#spec"), r"train\.steps\s+1000000\s+1000000\s+written")
            self.assertRegex(page.text("#spec"), r"train\.seed\s+-\s+1234\s+default")
            self.assertRegex(page.text("#spec"), r"layout\.dp\s+-\s+2\s+chosen by Terrace")
            self.assertRegex(page.text("#spec"), r"layout\.allocator\s+-\s+planned\s+default")
            self.assertRegex(page.text("#spec"), r"layout\.offload\.optimizer\.host\s+host\s+1\s+written")
            self.assertIn(f"{EVIL}.txt", page.text("#spec table"))
        self.nothing_ran()
        with self.subTest("hold and release a job that waits"):
            page.open(f"{self.page}/#/jobs/{waiting}")
            page.wait_for_text("#summary", "queued")
            self.assertFalse(page.run("return document.querySelector('#pause').checkVisibility()"), "it does not run")
            page.click("#hold")
            page.wait_for_text("dialog h2", f"Hold {waiting}?")
            page.type("#token", TOKEN)
            page.click("dialog .send")
            page.wait_for_text("#summary", "paused by user since", 60)
            self.assertEqual(self.status(waiting)["state"], "PAUSED")
            self.assertFalse(page.run("return document.querySelector('#hold').checkVisibility()"))
            page.click("#resume")
            page.click("dialog .send")
            page.wait_for_text("#summary", "queued", 60)
            page.run("sessionStorage.clear()")
            page.open(f"{self.page}/#/jobs/{endless}")
            page.wait_for_text("#summary", "running")
        with self.subTest("pause and resume"):
            page.run("scrollTo(0, 0)")
            self.assertFalse(page.run("return document.querySelector('#resume').checkVisibility()"))
            page.click("#pause")
            page.wait_for_text("dialog h2", f"Pause {endless}?")
            page.type("#token", "some-other-token-1234")
            page.press(ENTER)
            page.wait_for_text("dialog [role=alert]", "not the operator's token")
            self.assertEqual(self.status(endless)["state"], "RUNNING")
            page.type("#token", TOKEN)
            page.click("dialog .send")
            page.wait_for_text("#summary", "paused by user since", 60)
            self.assertEqual(self.status(endless)["state"], "PAUSED")
            page.wait_for_text("#announcements", "now paused")
            self.assertIn("when it is resumed", page.text("#summary"))
            page.wait_for_text("#ranks", "it has no ranks now")
            self.assertFalse(page.run("return document.querySelector('#pause').checkVisibility()"))
            page.click("#resume")
            page.wait_for_text("dialog h2", f"Resume {endless}?")
            self.assertEqual(page.run("return document.querySelector('#token').value"), TOKEN, "this tab keeps it")
            self.assertFalse(page.run("return document.querySelectorAll('#force').length > 0"))
            page.click("dialog .send")
            page.wait_for_text("#summary", "running", 60)
            self.wait_until(lambda: not page.run("return document.querySelector('#resume').checkVisibility()"),
                            "what runs cannot be resumed")
            page.run("sessionStorage.clear()")
        with self.subTest("cancel"):
            page.run("scrollTo(0, 0)")
            page.click("#cancel")
            page.type("#token", "some-other-token-1234")
            page.press(ENTER)
            page.wait_for_text("dialog", "token")
            self.assertEqual(self.status(endless)["state"], "RUNNING")
            page.wait_for_text("dialog [role=alert]", "not the operator's token")
            page.type("#token", TOKEN)
            page.click("dialog .danger")
            page.wait_for_text("#summary", "cancelled", 60)
            self.assertEqual(self.status(endless)["state"], "CANCELLED")
            page.wait_for_text("#announcements", "now cancelled")
            self.wait_until(lambda: not page.run("return document.querySelector('#cancel').checkVisibility()"),
                            "what has ended cannot be cancelled")
        self.assertEqual(self.browser.run("return Object.values(localStorage).length"), 0, "the token is kept by the tab alone")
        self.nothing_ran()

    def test_a_log_that_tries_to_be_a_script_is_shown_as_text(self):
        self.start_service(1)
        # The page shows a log's end: the job writes little itself, so that the hostile lines are there to the last look.
        job = self.submit(self.job({**ENDLESS, "train.log_every_steps": 1000}, name="noisy"))
        self.wait_for_steps(job, 3)
        [path] = self.folder.glob(f"worker-0/runs/{job}/1/0/rank.log")
        hostile = (f"</pre><script>window.hacked=1</script>{EVIL}<a href='javascript:window.hacked=1'>here</a>\n"
                   "\x1b]0;owned\x07\x1b[31mred\x1b[2J \u202egnp.exe \x9b31m \x00 \x08\x08\n").encode() + b"not UTF-8: \xff\xfe\xc3(\n"
        with path.open("ab") as log:
            log.write(hostile + b"the end of the hostile lines\n")
        page = self.open_page(f"#/jobs/{job}/logs")
        page.wait_for_text("h1", job)
        page.run("document.querySelector('#logs').scrollIntoView()")
        text = page.wait_for_text("#logs pre", "the end of the hostile lines")
        self.assertIn(f"</pre><script>window.hacked=1</script>{EVIL}<a href='javascript:window.hacked=1'>here</a>", text)
        self.assertIn("<U+001B>]0;owned<U+0007><U+001B>[31mred<U+001B>[2J <U+202E>gnp.exe <U+009B>31m <U+0000> <U+0008><U+0008>", text)
        self.assertIn("not UTF-8: ", text)
        self.assertNotRegex(text, "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
        self.assertEqual(page.run("return document.querySelectorAll('#logs pre *').length"), 0, "it is one text")
        self.nothing_ran()
        with self.subTest("terrace logs"):
            self.assertIn("\x1b]0;owned\x07", self.cli("logs", job).out, "a file gets the bytes")
            terminal, theirs = pty.openpty()
            running = self.run_command([BIN / "terrace", "--coordinator", self.address, "logs", job], stdout=theirs)
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(terminal, 4096):
                    shown += part
            except OSError:
                pass  # how a pseudo-terminal says that all of its users have gone
            os.close(terminal)
            self.assertEqual(running.wait().code, 0)
            self.assertIn(r"\x1b]0;owned\x07\x1b[31mred\x1b[2J \u202egnp.exe \xc2\x9b31m \x00 \x08\x08", shown.decode())
            self.assertNotIn(b"\x1b", shown)
        self.cli("cancel", job, "--force")

    def test_queue_nodes_and_comparison(self):
        self.start_coordinator()
        self.start_worker("worker-0")
        first = self.submit(self.job({"train.steps": 80, "train.eval_every_steps": 20}, name="first"))
        self.wait_for_state(first, "SUCCEEDED")
        second = self.submit(self.job({"train.steps": 60, "train.eval_every_steps": 20, "train.optimizer.lr": 1e-3,
                                       "model.config": {**GPT, "n_layer": 1}}, name="second"))
        self.wait_for_state(second, "SUCCEEDED")
        large = self.submit(self.job({"train.steps": 10, "resources.nodes": 2}, name="large"))
        page = self.open_page()
        with self.subTest("queue"):
            page.click_link("Queue")
            page.wait_for_text("h1", "Queue")
            text = page.wait_for_text("main table", large)
            self.assertIn("no matching worker", text)
            self.assertIn(self.status(large)["message"], text)
        with self.subTest("nodes"):
            page.click_link("Nodes")
            page.wait_for_text("h1", "Nodes")
            text = page.wait_for_text("main table", "worker-0")
            self.assertIn("ready", text)
            self.assertIn("0 of 1", text)
            self.assertRegex(text, r"[\d.]+ GiB")
            self.cli("drain", "worker-0", "--reason", f"new disk {EVIL}")
            text = page.wait_for_text("main table", "new disk")
            self.assertIn(f"drained (new disk {EVIL}): no job is placed here", text)
            self.assertIn("1 drained", page.text("main p"))
            self.cli("drain", "worker-0", "--disable")
        with self.subTest("two jobs picked from the list"):
            page.click_link("Jobs")
            page.click(f"#jobs input[aria-label='Compare {first}']")
            page.click(f"#jobs input[aria-label='Compare {second}']")
            page.click_link("Compare the two")
            page.wait_for_text("h1", f"{first} and {second}")
            self.chart_is_drawn("Training loss", 20)
            self.chart_is_drawn("Eval loss", 3)
            different = page.wait_for_text("#differences", "train.optimizer.lr")
            self.assertRegex(different, r"train\.optimizer\.lr\s+0\.003\s+0\.001")
            self.assertRegex(different, r"train\.steps\s+80\s+60")
            self.assertNotIn("train.seed", different, "what is equal is left out")
            page.choose("#axis", "tokens")
            page.wait_for_text("#main .u-legend", "tokens trained on")
        with self.subTest("events from before the page was opened"):
            page.open(f"{self.page}/#/jobs/{first}/events")
            page.wait_for_text("#events", "starting")
            events = page.wait_for_text("#events", "succeeded (completed): all steps are done")
            self.assertIn("evaluation at step 20", events)
            self.assertNotIn("step 1: loss", events)
            page.run("[...document.querySelectorAll('#events label')].find(e => e.innerText.includes('steps')).click()")
            page.wait_for_text("#events", "step 1: loss")
        with self.subTest("a job that does not exist"):
            page.open(f"{self.page}/#/jobs/{urllib.request.quote(EVIL)}")
            page.wait_for_text("[role=alert]", "terrace ls")
            self.assertEqual(page.text("h1"), EVIL)
        self.nothing_ran()

    def test_a_coordinator_that_goes_away_and_comes_back(self):
        coordinator = self.start_coordinator()
        page = self.open_page()
        page.wait_for_text("#shown", "terrace submit")
        coordinator.end()
        page.wait_for_text("#connection", "has not answered since")
        self.start_coordinator()
        self.wait_until(lambda: page.text("#connection") == "", "the page finds the coordinator again", 30)

    def test_a_page_that_nobody_sees_asks_for_nothing(self):
        self.start_coordinator()
        page = self.open_page()
        page.wait_for_text("#shown", "terrace submit")
        asked = "return performance.getEntriesByType('resource').length"
        hide = ("Object.defineProperty(document, 'hidden', {configurable: true, get: () => pageIsHidden});"
                "document.dispatchEvent(new Event('visibilitychange'))")
        page.run("window.pageIsHidden = true;" + hide)
        time.sleep(0.5)
        before = page.run(asked)
        time.sleep(5)
        self.assertEqual(page.run(asked), before)
        page.run("window.pageIsHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
        self.wait_until(lambda: page.run(asked) > before, "a page that is seen again asks at once", 2)

    def test_without_a_token_nobody_cancels(self):
        self.coordinator_options = self.coordinator_options[:2]
        self.start_service(1)
        job = self.submit(self.job(ENDLESS, name="endless"))
        self.wait_for_steps(job, 10)
        page = self.open_page(f"#/jobs/{job}")
        page.wait_for_text("#summary", "running")
        self.chart_is_drawn("Loss", 5)
        for what in ("cancel", "pause", "resume"):
            self.assertFalse(page.run("return document.getElementById(arguments[0]).checkVisibility()", what))
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.get(f"/api/v1/jobs/{job}/{what}", method="POST", headers={"Authorization": "Bearer "})
            self.assertIn(refused.exception.code, (401, 403))
        self.assertEqual(self.status(job)["state"], "RUNNING")
        self.cli("cancel", "--force", job)
        self.wait_for_state(job, "CANCELLED")

    def test_narrow_dark_and_by_keyboard(self):
        self.start_service(1)
        job = self.submit(self.job({"train.steps": 60, "train.eval_every_steps": 20}, name="short"))
        self.wait_for_state(job, "SUCCEEDED")
        page = self.open_page()
        page.command("Emulation.setDeviceMetricsOverride", width=320, height=640, deviceScaleFactor=1, mobile=True)
        page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.find("#jobs a")
        self.assertLess(page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"), 64)
        for _ in range(30):
            if page.run("return document.activeElement.innerText") == job:
                break
            page.press(TAB)
        self.assertEqual(page.run("return document.activeElement.innerText"), job, "the keyboard reaches each job")
        page.press(ENTER)
        page.wait_for_text("h1", job)
        self.chart_is_drawn("Loss", 30)
        for address in ("#/jobs", f"#/jobs/{job}", "#/queue", "#/nodes", f"#/compare/{job}/{job}"):
            page.open(f"{self.page}/{address}")
            page.find("h1")
            self.assertLessEqual(page.run("return document.documentElement.scrollWidth"), 320, address)
        page.open(f"{self.page}/#/jobs/{job}")
        page.find("#curves h2")
        unnamed = page.run("return [...document.querySelectorAll('input, select, button, iframe, table, section, nav')].filter("
                           "e => !(e.labels?.length || e.innerText || e.title || e.ariaLabel || e.querySelector('caption') "
                           "|| e.getAttribute('aria-labelledby'))).map(e => e.outerHTML.slice(0, 100))")
        self.assertEqual(unnamed, [], "a screen reader has a name for everything")
        told = [node for node in page.command("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
        silent = [node["role"]["value"] for node in told if not node.get("name", {}).get("value") and node["role"]["value"] in
                  ("region", "navigation", "heading", "table", "link", "button", "checkbox", "combobox", "Iframe", "DisclosureTriangle")]
        self.assertEqual(silent, [], "so says what the browser hands to it")


if __name__ == "__main__":
    unittest.main(verbosity=2)
