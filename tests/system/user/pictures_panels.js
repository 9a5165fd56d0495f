// Draws `board`, panels with their data, in the places that they have in Grafana's grid of 24 columns.
// SPDX-License-Identifier: Apache-2.0
const COLUMN = 52, ROW = 30, GAP = 8, TOP = 44;
const COLOURS = ["#2f6fde", "#d9822b", "#2e9e5b", "#c23b5a", "#7c55c8", "#1f9aa8", "#a68a1f", "#7a7f88", "#b0569b", "#4f7d3a"];

const POWERS = [...Array(44).keys()].map((power) => 2 ** power);  // distances between lines of bytes

function scaled(value, names, base) {
  let at = 0;
  while (Math.abs(value) >= base && at < names.length - 1) { value /= base; at += 1; }
  return `${Number(value.toPrecision(3))} ${names[at]}`;
}

function words(value, unit) {
  if (value === null || value === undefined) return "";
  if (unit === "bytes" || unit === "Bps") return scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024) + (unit === "Bps" ? "/s" : "");
  if (unit === "percentunit") return `${Number((value * 100).toPrecision(3))} %`;
  if (unit === "sci") return value === 0 ? "0" : value.toExponential(1);
  if (unit === "s" && value !== 0 && Math.abs(value) < 1) {
    return Math.abs(value) < 1e-3 ? `${Number((value * 1e6).toPrecision(3))} µs` : `${Number((value * 1e3).toPrecision(3))} ms`;
  }
  return scaled(value, ["", "k", "M", "G"], 1000).trim() + (unit === "s" ? " s" : unit === "ops" ? "/s" : "");
}

function element(parent, tag, style, text) {
  const made = document.createElement(tag);
  made.style.cssText = style;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const newest = (values) => values.findLast((value) => value !== null);

function drawNumbers(place, panel) {
  if (panel.type === "stat") {
    const row = element(place, "div", "display:flex;flex-wrap:wrap;gap:2px 16px;margin-top:4px");
    for (const one of panel.series.slice(0, 6)) {
      const item = element(row, "div", "");
      element(item, "div", "font-size:20px", words(newest(one.values), panel.unit));
      element(item, "div", "font-size:11px;color:#666", one.label);
    }
    return;
  }
  const table = element(place, "table", "width:100%;font-size:12px;border-collapse:collapse;margin-top:4px");
  for (const one of panel.series.slice(0, 9)) {
    const row = element(table, "tr", "border-bottom:1px solid #eee");
    element(row, "td", "padding:2px", one.label);
    element(row, "td", "text-align:right", words(newest(one.values), panel.unit));
  }
}

function drawLines(place, panel, width, height) {
  const lines = panel.series.slice(0, COLOURS.length);
  const legend = element(place, "div", "font-size:11px;position:absolute;bottom:4px;left:8px;right:8px;max-height:28px;overflow:hidden;color:#444");
  lines.forEach((one, at) => {
    element(legend, "span", `display:inline-block;width:9px;height:9px;margin-right:3px;background:${COLOURS[at]}`);
    element(legend, "span", "margin-right:12px", one.label);
  });
  const sums = panel.times.map(() => 0);
  const columns = lines.map((one) => (panel.stacked
    ? one.values.map((value, at) => { sums[at] += value ?? 0; return sums[at]; }) : one.values));
  const series = lines.map((one, at) => ({ label: one.label, stroke: COLOURS[at], width: 1.5, points: { show: false }, spanGaps: true,
    fill: panel.stacked ? COLOURS[at] : undefined }));
  if (panel.stacked) { columns.reverse(); series.reverse(); }  // the highest sum lies behind the others
  const axis = { font: "11px sans-serif", stroke: "#555", grid: { stroke: "#eee" } };
  new uPlot({ width, height, legend: { show: false }, cursor: { show: false }, series: [{}, ...series],
    scales: { y: { range: (_, low, high) => {
      const least = low >= 0 && (panel.stacked || low < high / 2) ? 0 : low, most = high > least ? high : least + (Math.abs(least) || 1);
      return [least, most + (most - least) * 0.08];
    } } },
    axes: [{ ...axis, size: 26, space: 76, values: (_, all) => all.map((at) => new Date(at * 1000).toTimeString().slice(0, 8)) },
      { ...axis, size: 66, ...(panel.unit === "bytes" || panel.unit === "Bps" ? { incrs: POWERS } : {}),
        values: (_, all) => all.map((value) => words(value, panel.unit)) }] }, [panel.times, ...columns], place);
}

const main = document.querySelector("main");
document.body.style.cssText = "margin:0;background:#f4f5f7;font-family:sans-serif;color:#222";
main.style.cssText = "position:relative";
element(main, "div", "position:absolute;left:12px;top:10px;font-size:18px;font-weight:600", board.title);
let bottom = 0;
for (const panel of board.panels) {
  const { x, y, w, h } = panel.place;
  const width = w * COLUMN - GAP, height = h * ROW - GAP;
  bottom = Math.max(bottom, TOP + (y + h) * ROW);
  const place = element(main, "section", `position:absolute;overflow:hidden;left:${x * COLUMN + 12}px;top:${TOP + y * ROW}px;` +
    `width:${width - 16}px;height:${height - 10}px;padding:5px 8px;background:#fff;border:1px solid #ddd;border-radius:3px`);
  element(place, "div", "font-size:13px;font-weight:600", panel.title);
  if (panel.series.length === 0) element(place, "div", "margin-top:16px;color:#666;font-size:13px", panel.empty);
  else if (panel.type === "timeseries") drawLines(place, panel, width - 16, height - 64);
  else drawNumbers(place, panel);
}
main.style.height = `${bottom}px`;
