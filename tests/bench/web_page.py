#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the web page and /metrics cost: a coordinator with --jobs jobs, a worker whose job trains, Chromium without a window.

  paint    the list of all jobs, loaded anew --rounds times with an empty cache: milliseconds until the browser painted first, until the
           rows were there, and bytes that were sent. Medians, and the largest.
  open     processor time of the coordinator's process over --seconds, in turns: no page, the list, the page of the job that trains (its
           curves, memory and ranks) and that page's log in sight. Printed: percent of one core with each page and beyond what it takes without,
           medians of --rounds turns, and the same of the worker's daemon. A turn begins when the page has been there for some seconds, and
           has one scrape of both.
  scrape   --scrapes scrapes of /metrics of the coordinator and of the worker with --ranks ranks: milliseconds, median and largest.

Debian's chromium and chromium-driver; all traffic stays on the machine.

  tests/bench/web_page.py paint|open|scrape --bin build/release/bin [--jobs 1000] [--rounds 7] [--seconds 10] [--ranks 4] [--scrapes 20]
"""
import argparse
import os
import pathlib
import statistics
import sys
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/system/user"))

SETTLE_SECONDS = 4
AT_ONCE = 8  # clients that submit
# Milliseconds since the navigation began: first paint, first contentful paint; -1: not yet.
PAINTS = ("const of = name => performance.getEntriesByName(name)[0]?.startTime ?? -1;"
          "return [of('first-paint'), of('first-contentful-paint')]")
BYTES = "return performance.getEntriesByType('resource').reduce((sum, entry) => sum + entry.transferSize, 0)"
# Notes when the first row of the list is there, from before the page's own scripts on.
WATCH_ROWS = ("new MutationObserver((_, watcher) => { if (document.querySelector('#jobs tbody tr')) {"
              "window.rowsAt = performance.now(); watcher.disconnect(); } })"
              ".observe(document, {childList: true, subtree: true})")


def of_median(values, unit):
    return f"{statistics.median(values):.3g} {unit} (from {min(values):.3g} to {max(values):.3g}, {len(values)} times)"


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def with_descendants(pid):
    """Of the coordinator and the processes that it started: pages are drawn by one of them."""
    pids, unread = [], [pid]
    while unread:
        pids.append(unread.pop())
        for task in pathlib.Path(f"/proc/{pids[-1]}/task").glob("*/children"):
            unread += [int(child) for child in task.read_text().split()]
    return pids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("paint", "open", "scrape"))
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    for name, default in (("jobs", 1000), ("rounds", 7), ("seconds", 10), ("ranks", 4), ("scrapes", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    os.environ["TERRACE_BIN"] = str(options.bin.resolve())

    from browser import Browser
    from service import ServiceTest, free_port
    from support import GPT, learnable_text

    class Bench(ServiceTest):
        def setUp(self):
            super().setUp()
            self.page = f"127.0.0.1:{free_port()}"
            self.coordinator_options = ("--web-listen", self.page)

        def begin(self, ranks):
            """The jobs that wait need more nodes than there are; the one that trains is the newest."""
            self.coordinator = self.start_coordinator()
            self.worker = self.start_worker("worker-0", devices=ranks)
            self.write("corpus.txt", learnable_text(200_000))
            waiting = [self.job({"train.steps": 1_000_000, "resources.nodes": 2}, name=f"waiting-{i}") for i in range(options.jobs - 1)]
            for first in range(0, len(waiting), AT_ONCE):
                started = [self.start("--coordinator", self.address, "submit", job) for job in waiting[first:first + AT_ONCE]]
                for one in started:
                    self.assertEqual(one.wait().code, 0)
            # Steps of about 100 ms and more.
            model = {**GPT, "n_embd": 64 if ranks > 8 else 256, "n_layer": 2 if ranks > 8 else 4}
            job = self.submit(self.job({"model.config": model, "train.steps": 1_000_000, "train.global_batch": max(8, ranks),
                                        "resources.devices_per_node": ranks, "layout.dp": ranks, "priority": 10}, name="training"))
            self.wait_until(lambda: self.step_of(job) >= 3, "it trains", 300)
            return job

        def end(self, job):
            self.cli("cancel", "--force", job)
            self.wait_for_state(job, "CANCELLED")

        def test_paint(self):
            job = self.begin(1)
            browser = Browser(self)
            browser.command("Network.enable")
            browser.command("Network.setCacheDisabled", cacheDisabled=True)
            browser.command("Page.addScriptToEvaluateOnNewDocument", source=WATCH_ROWS)
            first, contentful, rows, sent = [], [], [], []
            for _ in range(options.rounds + 1):
                browser.open("about:blank")
                browser.open(f"http://{self.page}/")
                browser.wait_for_text("#shown", f"of {options.jobs:,} jobs")
                paints = self.wait_until(lambda: (p := browser.run(PAINTS))[1] >= 0 and p, "it is painted")
                first.append(paints[0])
                contentful.append(paints[1])
                rows.append(browser.run("return window.rowsAt"))
                sent.append(browser.run(BYTES) / 1000)
            browser.quit()
            print(f"{options.jobs} jobs, load {os.getloadavg()[0]:.1f}; the first time is left out")
            print(f"first paint            {of_median(first[1:], 'ms')}")
            print(f"first contentful paint {of_median(contentful[1:], 'ms')}")
            print(f"rows of the list       {of_median(rows[1:], 'ms')}")
            print(f"sent                   {of_median(sent[1:], 'kB')}")
            self.end(job)

        def test_open(self):
            job = self.begin(1)
            browser = Browser(self)
            pages = {"no page": "about:blank", "the list": f"http://{self.page}/", "a job": f"http://{self.page}/#/jobs/{job}",
                     "a job's log": f"http://{self.page}/#/jobs/{job}/logs"}
            used, daemon = {name: [] for name in pages}, {name: [] for name in pages}
            metrics = [f"http://{address}/metrics" for address in (self.coordinator_metrics, self.nodes()[0]["metrics_address"])]
            for _ in range(options.rounds):
                for name, address in pages.items():
                    browser.open("about:blank")
                    browser.open(address)
                    time.sleep(SETTLE_SECONDS)
                    pids = with_descendants(self.coordinator.process.pid)
                    worker = self.worker.process.pid
                    before, of_worker, begin = sum(map(processor_seconds, pids)), processor_seconds(worker), time.monotonic()
                    for address in metrics:
                        urllib.request.urlopen(address, timeout=60).read()
                    time.sleep(options.seconds)
                    seconds = time.monotonic() - begin
                    used[name].append(100 * (sum(map(processor_seconds, pids)) - before) / seconds)
                    daemon[name].append(100 * (processor_seconds(worker) - of_worker) / seconds)
            browser.quit()
            step = float(self.status(job)["progress"]["step_seconds"])
            print(f"{options.jobs} jobs, steps of {1000 * step:.0f} ms, load {os.getloadavg()[0]:.1f}; percent of one core")
            without = statistics.median(used["no page"])
            for name, values in used.items():
                print(f"{name:12} {of_median(values, '%')}, {statistics.median(values) - without:+.2f} beyond no page; "
                      f"worker {statistics.median(daemon[name]):.2f} %")
            self.end(job)

        def test_scrape(self):
            job = self.begin(options.ranks)
            addresses = {"coordinator": self.coordinator_metrics, "worker": self.nodes()[0]["metrics_address"]}
            print(f"{options.jobs} jobs, one of {options.ranks} ranks, load {os.getloadavg()[0]:.1f}")
            for name, address in addresses.items():
                took, size = [], 0
                for _ in range(options.scrapes):
                    time.sleep(1.1)  # else the text of the last scrape would be served again
                    begin = time.monotonic()
                    size = len(urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read())
                    took.append(1000 * (time.monotonic() - begin))
                print(f"{name:12} {of_median(took, 'ms')}, {size} bytes")
            self.end(job)

    suite = unittest.TestSuite([Bench(f"test_{options.what}")])
    sys.exit(not unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful())


if __name__ == "__main__":
    main()
