#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/pictures anew: the web page and the dashboards' panels, of a real service, real jobs and a real Prometheus, in Chromium.

    python3 tests/system/user/make_pictures.py

Grafana is no part of this. Each panel's own queries are asked of Prometheus over the time shown, and drawn by the web page's chart library.
"""
import base64
import json
import math
import os
import pathlib
import signal
import sys
import time
import unittest
import urllib.parse
import urllib.request

import browser
from browser import Browser
from dashboards import dashboards
from grafana_test import filled_in
from monitoring import MonitoredTest, PROMETHEUS
from service import free_port
from support import GPT, ROOT, learnable_text

PICTURES = ROOT / "docs/pictures"
SECONDS_SHOWN = 100
STEP_SECONDS = 2
WIDE, PAGE, PHONE = 1280, 1360, 390


class Pictures(MonitoredTest):
    def setUp(self):
        super().setUp()
        self.page = f"127.0.0.1:{free_port()}"
        self.coordinator_options = ("--web-listen", self.page)

    def start_jobs(self):
        """One that has ended; one of two ranks with states on host and NVMe, of which one dies on the way; one that waits."""
        self.write("corpus.txt", learnable_text(2_000_000))
        short = self.submit(self.job({"train.steps": 400, "train.eval_every_steps": 40}, name="short"))
        self.wait_for_state(short, "SUCCEEDED")
        nvme = self.folder / "nvme"
        nvme.mkdir()
        stories = self.submit(self.job({
            "model.config": {**GPT, "n_embd": 128, "n_layer": 4}, "train.steps": 20_000, "train.precision": "fp16",
            "train.eval_every_steps": 50, "checkpoint.every_steps": 100, "checkpoint.keep": 1, "resources.devices_per_node": 2,
            "layout.dp": 2, "resources.nvme": str(nvme), "layout.offload": {"optimizer": "nvme", "gradient": "host"},
            "max_restarts": 100}, name="stories"))
        waiting = self.submit(self.job({"train.steps": 1_000_000, "resources.nodes": 2}, name="waiting"))
        self.wait_until(lambda: int(self.status(stories)["progress"].get("checkpoint_step", 0)) > 0, "there is a checkpoint", 120)
        return short, stories, waiting

    def series(self, target, end):
        """[(legend, {time: value})] of a panel's query, over the time shown or now."""
        form = {"query": filled_in(target["expr"]), "start": end - SECONDS_SHOWN, "end": end, "step": STEP_SECONDS}
        if target["instant"]:
            form["start"] = end
        url = f"http://{self.prometheus}/api/v1/query_range?{urllib.parse.urlencode(form)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            found = json.load(response)["data"]["result"]
        named = []
        for one in found:
            legend = target["legendFormat"]
            for label, value in one["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            values = {int(at): float(value) for at, value in one["values"] if math.isfinite(float(value))}
            if values:
                named.append((legend, values))
        return named

    def panel(self, panel, end):
        """What panels.js draws."""
        named = [one for target in panel["targets"] for one in self.series(target, end)]
        times = [at for at in range(int(end) - SECONDS_SHOWN, int(end) + 1) if any(at in values for _, values in named)]
        defaults = panel["fieldConfig"]["defaults"]
        return {"title": panel["title"], "type": panel["type"], "unit": defaults["unit"], "empty": defaults["noValue"], "place": panel["gridPos"],
                "stacked": defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal", "times": times,
                "series": [{"label": legend, "values": [values.get(at) for at in times]} for legend, values in named]}

    def save(self, name, width, height):
        """The page from its top, `height` pixels of it."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        made = self.browser.command("Page.captureScreenshot", format="webp", quality=80, captureBeyondViewport=True, clip=clip)
        (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(made["data"]))

    def save_section(self, name, selector):
        self.browser.run("document.querySelector(arguments[0]).scrollIntoView()", selector)
        time.sleep(1.5)  # what is loaded when it is seen
        box = self.browser.run("const b = document.querySelector(arguments[0]).getBoundingClientRect();"
                               "return [b.left + scrollX, b.top + scrollY, b.width, b.height]", selector)
        clip = dict(zip(("x", "y", "width", "height"), box), scale=1)
        made = self.browser.command("Page.captureScreenshot", format="webp", quality=80, captureBeyondViewport=True, clip=clip)
        (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(made["data"]))

    def size(self, width, dark=False):
        self.browser.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width == PHONE)
        self.browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture_page(self, short, stories):
        page = self.browser
        self.size(PAGE)
        page.open(f"http://{self.page}/#/jobs")
        page.wait_for_text("#jobs", stories)
        self.save("jobs", PAGE, 420)
        page.open(f"http://{self.page}/#/jobs/{stories}")
        page.wait_for_text("#summary", "running")
        page.wait_for_text("#curves", "Loss")
        time.sleep(3)
        self.save("job", PAGE, 900)
        for section in ("memory", "plan", "ranks", "restarts"):
            if page.run("return document.querySelector(arguments[0]) !== null", f"#{section}"):
                self.save_section(section, f"#{section}")
        page.open(f"http://{self.page}/#/queue")
        page.wait_for_text("main table", "waiting")
        self.save("queue", PAGE, 320)
        page.open(f"http://{self.page}/#/compare/{short}/{stories}")
        page.wait_for_text("#differences", "train.steps")
        time.sleep(2)
        self.save("compare", PAGE, 760)
        self.size(PHONE, dark=True)
        page.open(f"http://{self.page}/#/jobs/{stories}")
        page.wait_for_text("#curves", "Loss")
        time.sleep(3)
        self.save("phone", PHONE, 900)

    def picture_dashboards(self):
        end = time.time() - 2
        assets = ROOT / "coordinator/web/assets"
        script = (pathlib.Path(__file__).parent / "pictures_panels.js").read_text()
        self.size(WIDE)
        for board in dashboards():
            shown = {"title": board["title"], "panels": [self.panel(panel, end) for panel in board["panels"]]}
            for panel in shown["panels"]:
                if not panel["series"]:
                    print(f"{board['uid']}: {panel['title']}: {panel['empty']}")
            data = json.dumps(shown).replace("</", "<\\/")
            html = (f"<!doctype html><meta charset=utf-8><style>{(assets / 'uPlot.min.css').read_text()}</style><main></main>"
                    f"<script>{(assets / 'uPlot.iife.min.js').read_text()}</script><script>const board = {data};\n{script}</script>")
            path = self.write(f"{board['uid']}.html", html)
            self.browser.open(f"file://{path}")
            self.assertEqual(self.browser.complaints(), [])
            self.save(board["uid"].replace("terrace-", "dashboard-"), WIDE, self.browser.run("return document.querySelector('main').scrollHeight + 16"))

    def test_pictures(self):
        PICTURES.mkdir(exist_ok=True)
        self.start_service(0)
        self.start_worker("worker-0", devices=2)
        self.start_monitoring()
        begun = time.monotonic()
        short, stories, waiting = self.start_jobs()
        time.sleep(max(0, begun + SECONDS_SHOWN / 2 - time.monotonic()))
        os.kill(self.pids_by_rank()[1], signal.SIGKILL)
        self.wait_until(lambda: int(self.status(stories).get("restarts", 0)) > 0, "it restarts")
        self.wait_for_state(stories, "RUNNING")
        self.cli("status", "no-such-job", code=None)  # a call that fails
        time.sleep(max(10, begun + SECONDS_SHOWN - time.monotonic()))
        self.browser = Browser(self, WIDE, 900)
        self.picture_page(short, stories)
        self.picture_dashboards()
        self.browser.quit()
        for job in (waiting, stories):
            self.cli("cancel", "--force", job)


if __name__ == "__main__":
    if browser.missing() or not PROMETHEUS:
        sys.exit(browser.missing() or "Prometheus (Debian package) is not installed")
    unittest.main(argv=[sys.argv[0], "Pictures"])
