#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes dashboards/*.json from panels.py. A test compares them, so that what is committed is what this writes."""
import json
import pathlib

from panels import DASHBOARDS, reason_if_empty

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, COLUMNS = {"stat": 6, "table": 12, "timeseries": 12}, {"stat": 4, "table": 8, "timeseries": 8}, 24
# A multiple choice of values: what is chosen, and the query for what there is.
QUERIES = {
    "coordinator": "label_values(terrace_jobs, instance)",
    "job": 'label_values(terrace_job_step{instance=~"$coordinator"}, job)',
    "rank": 'label_values(terrace_steps_total{job=~"$job"}, rank)',
}


def variables(names):
    everything = {"text": ["All"], "value": ["$__all"]}
    chosen = [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
               "current": {"text": "Terrace", "value": "terrace-prometheus"}, "hide": 0}]
    for name in names:
        chosen.append({"name": name, "label": name.capitalize(), "type": "query", "datasource": DATASOURCE, "query": QUERIES[name],
                       "multi": True, "includeAll": True, "allValue": ".*", "current": everything,
                       "refresh": 2, "sort": 7, "hide": 0})
    return chosen


def options(kind):
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area",
                "justifyMode": "auto", "orientation": "auto", "textMode": "auto"}
    if kind == "table":
        return {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""}}
    return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}, "tooltip": {"mode": "multi", "sort": "desc"}}


def panel(number, row, x, y):
    title, unit, queries, description = row
    title, _, form = title.partition("|")
    kind = form if form in ("stat", "table") else "timeseries"
    defaults = {"unit": unit, "min": 0} if unit in ("bytes", "Bps") and "error" not in title else {"unit": unit}
    defaults["noValue"] = reason_if_empty(queries)
    if kind == "timeseries":
        stacked = form == "stack"
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 40 if stacked else 0, "showPoints": "never",
                              "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
    targets = [{"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend,
                "instant": kind == "table", "range": kind != "table", **({"format": "table"} if kind == "table" else {})}
               for index, (expression, legend) in enumerate(queries)]
    return {"id": number, "type": kind, "title": title, "description": description, "datasource": DATASOURCE, "targets": targets,
            "gridPos": {"x": x, "y": y, "w": WIDTH[kind], "h": HEIGHT[kind]},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options(kind)}


def placed(rows):
    """Panels from left to right; a line ends where the next does not fit or is of another height."""
    panels, x, y, height = [], 0, 0, 0
    for number, row in enumerate(rows, 1):
        made = panel(number, row, x, y)
        place = made["gridPos"]
        if x + place["w"] > COLUMNS or (x > 0 and place["h"] != height):
            x, y = 0, y + height
            place.update(x=x, y=y)
        x, height = x + place["w"], place["h"]
        panels.append(made)
    return panels


def dashboard(uid):
    title, names, rows = DASHBOARDS[uid]
    links = [{"title": "Terrace", "type": "dashboards", "tags": ["terrace"], "asDropdown": True, "includeVars": True, "keepTime": True,
              "targetBlank": False, "icon": "external link", "tooltip": "", "url": ""}]
    return {"uid": uid, "title": title, "tags": ["terrace"], "timezone": "browser", "editable": False, "graphTooltip": 1,
            "time": {"from": "now-1h", "to": "now"}, "refresh": "15s", "schemaVersion": 38, "version": 1, "links": links,
            "templating": {"list": variables(names)}, "annotations": {"list": []}, "panels": placed(rows)}


def text(uid):
    return json.dumps(dashboard(uid), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for uid in DASHBOARDS:
        (FOLDER / f"{uid}.json").write_text(text(uid))
