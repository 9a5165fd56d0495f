# SPDX-License-Identifier: Apache-2.0
"""What tests ask of the dashboards in deploy/grafana."""
import json
import re

from monitoring import NAME
from support import ROOT

GRAFANA = ROOT / "deploy/grafana"
# Of Grafana's own units, those that are used: what they mean in the names of metrics.
UNITS = {"bytes": "bytes", "Bps": "bytes a second", "s": "seconds", "percentunit": "ratio", "short": "", "ops": "a second", "sci": ""}
RECORDED = {"job:terrace_goodput:ratio_rate30m": "ratio", "rank:terrace_memory_external:ratio": "ratio",
            "rank:terrace_offload_stall:ratio_rate5m": "ratio", "rank:terrace_compute:ratio_rate5m": "ratio",
            "rank:terrace_collective_exposed:ratio_rate5m": "ratio", "job:terrace_tokens_per_joule:rate5m": "",
            "cluster:terrace_tokens_per_joule:rate5m": "", "instance:terrace_nvme_drive_writes_per_day:rate1h": ""}


def dashboards():
    return [json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))]


def queries():
    """(where, unit, target) of every query of every panel."""
    for board in dashboards():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{board['uid']}: {panel['title']}: {target['expr']}", panel["fieldConfig"]["defaults"]["unit"], target


def unit_of(expression, table):
    """What a query is measured in, by the names of its metrics and what is made of them."""
    units = {RECORDED[name] if name in RECORDED else table[name]["unit"] for name in NAME.findall(expression) if name in RECORDED or name in table}
    unit, = units or {""}
    if unit in ("nats", "joules"):
        unit = ""
    if re.match(r"count\b", expression):
        return ""
    if re.search(r"\brate\(", expression) and "histogram_quantile" not in expression:
        return {"bytes": "bytes a second", "seconds": "ratio", "": "a second"}[unit]
    if "histogram_quantile" in expression:
        return "seconds" if "_seconds_bucket" in expression else unit
    return unit
