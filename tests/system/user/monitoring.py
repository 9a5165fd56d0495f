# SPDX-License-Identifier: Apache-2.0
"""Prometheus and Alertmanager beside a coordinator and workers, with the configuration of deploy/prometheus, for tests."""
import json
import os
import pathlib
import re
import shutil
import urllib.parse
import urllib.request

from service import ServiceTest, free_port
from support import BIN, ROOT

DEPLOY = ROOT / "deploy/prometheus"
# Debian's package names it after itself.
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
PROMETHEUS = shutil.which("prometheus")
NAME = re.compile(r"\b(?:[a-z]+:)?terrace_\w+(?::\w+)?\b")


def metric_table():
    """name -> row, of both programs; of a histogram its series as well."""
    table = {}
    for program in ("terrace-coordinator", "terrace-worker"):
        with os.popen(f"{BIN / program} metrics -o json") as printed:
            for row in json.load(printed)["metrics"]:
                table[row["name"]] = row
                if row["type"] == "histogram":
                    table[row["name"] + "_bucket"] = {**row, "unit": "", "labels": [*row["labels"], "le"]}
                    table[row["name"] + "_sum"] = {**row, "type": "counter"}
                    table[row["name"] + "_count"] = {**row, "unit": "", "type": "counter"}
    return table


def shortened(text, seconds=6):
    """Rules that see and wait for a few seconds where the real ones take minutes: ranges, offsets and `for:`."""
    text = re.sub(r"\[\d+[mhd]\]", f"[{seconds}s]", text)
    text = re.sub(r"offset \d+[mhd]", f"offset {seconds}s", text)
    return re.sub(r"for: \d+[mhd]", "for: 1s", text)


class MonitoredTest(ServiceTest):
    """A service that is scraped each second."""

    def start_monitoring(self, change_alerts=lambda text: text):
        folder = self.folder / "prometheus"
        (folder / "targets").mkdir(parents=True)
        self.prometheus, self.alertmanager = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        config = (DEPLOY / "prometheus.yml").read_text()
        config = re.sub(r"(scrape_interval|evaluation_interval): 15s", r"\1: 1s", config).replace("scrape_timeout: 10s", "scrape_timeout: 1s")
        (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:9093", self.alertmanager))
        (folder / "rules.yml").write_text(shortened((DEPLOY / "rules.yml").read_text()).replace("interval: 1m", "interval: 1s"))
        (folder / "alerts.yml").write_text(change_alerts(shortened((DEPLOY / "alerts.yml").read_text())))
        route = (DEPLOY / "alertmanager.yml").read_text()
        (folder / "alertmanager.yml").write_text(route.replace("group_wait: 30s", "group_wait: 1s"))
        self.write_targets()
        self.run_command([PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                          f"--web.listen-address={self.prometheus}", "--log.level=warn"])
        if ALERTMANAGER:
            self.run_command([ALERTMANAGER, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts",
                              f"--web.listen-address={self.alertmanager}", "--cluster.listen-address=", "--log.level=warn"])
        self.wait_until(lambda: self.answers(f"http://{self.prometheus}/-/ready"), "Prometheus is ready")
        targets = 1 + len(self.nodes())
        self.wait_until(lambda: len([up for _, up in self.query("up") if up == 1]) == targets, "all targets are scraped")

    def write_targets(self):
        addresses = {"coordinators": [self.coordinator_metrics], "workers": [node["metrics_address"] for node in self.nodes()]}
        for name, targets in addresses.items():
            path = self.folder / f"prometheus/targets/{name}.yml"
            pathlib.Path(f"{path}.new").write_text(json.dumps([{"targets": targets}]))
            os.replace(f"{path}.new", path)

    @staticmethod
    def answers(url):
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.read()
        except OSError:
            return None

    def query(self, expression):
        """Samples: [({label: value}, number)]. AssertionError for what is no query."""
        url = f"http://{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        data = answer["data"]
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def firing(self):
        """The names of the alerts that Alertmanager has been told of."""
        answer = self.answers(f"http://{self.alertmanager}/api/v2/alerts")
        return {alert["labels"]["alertname"] for alert in json.loads(answer or "[]")}

    def wait_for_alert(self, name, seconds=60):
        self.wait_until(lambda: name in self.firing(), f"{name} fires", seconds)
