// Charts: a figure with title, the newest value, axes with units, a legend with the values under the cursor, and
// the numbers as a table for those who do not see it. uPlot draws; it is loaded with the first chart.
// SPDX-License-Identifier: Apache-2.0
import { el, setText } from "./dom.js";
import { clocks, moment, real, ticks } from "./format.js";
import { plainTable } from "./table.js";

const HEIGHT_PX = 230;
const TABLE_ROWS = 40;
const MARKED_POINTS = 60;
let library = null;

function load() {
  library = library || new Promise((resolve, reject) => {
    document.head.append(el("link", { rel: "stylesheet", href: "/assets/uPlot.min.css" }));
    const script = el("script", { src: "/assets/uPlot.iife.min.js" });
    script.addEventListener("load", () => resolve(globalThis.uPlot));
    script.addEventListener("error", () => {
      script.remove();
      library = null;  // the next chart tries again
      reject(new Error("uPlot.iife.min.js did not load"));
    });
    document.head.append(script);
  });
  return library;
}

const wholeOnly = (value) => (value % 1 ? "" : value.toLocaleString("en-US"));

// Of the numbers beside y in pixels: a digit takes 7, ticks and gaps the rest. As wide as 7 digits at least, so that charts that
// stand below each other begin at one line as a rule.
const widthFor = (u, labels) => 34 + 7 * Math.max(7, ...(labels || []).map((label) => String(label ?? "").length));

// A colour of style.css, as it is in the present theme.
export function colour(name, alpha = "") {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() + alpha;
}

// options: title; time: whether x is seconds since 1970, else it counts xLabel ("step"); unit of y; format(value) with
// its unit, axis(value) without; incrs: distances of y's grid; fromZero: whether y begins at 0; canLog: whether a
// logarithmic y is offered; series: [{label, colour, dash, points, faint, sparse}] in the order of the data's columns;
// bands: [[upper, lower, colour]]; stacked: values are sums, told by raw(series, index).
export class Chart {
  constructor(parent, options) {
    this.options = options;
    this.data = null;
    this.plot = null;
    this.isZoomed = false;
    this.log = el("input", { type: "checkbox", "aria-label": `${options.title}: log scale`,
      onchange: () => this.rebuild() });
    this.latest = el("small", { class: "latest" });
    this.place = el("div", { class: "plot" });
    this.rows = el("div");
    this.numbers = el("details", { class: "numbers", ontoggle: () => this.fillTable() },
      el("summary", null, `${options.title}: the numbers as a table`), this.rows);
    this.empty = el("p", { class: "quiet" }, options.empty || "Nothing was recorded yet.");
    this.node = el("figure", { class: options.stacked ? "chart stacked" : "chart", "data-points": 0 },
      el("figcaption", null, el("strong", null, options.title), el("span", { class: "unit" }, options.unit),
        options.canLog ? el("label", { class: "unit" }, this.log, " log scale") : null, this.latest),
      this.empty, this.place, this.numbers);
    this.numbers.hidden = true;
    parent.append(this.node);
    this.onTheme = () => this.rebuild();
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.theme.addEventListener("change", this.onTheme);
    this.size = new ResizeObserver(() => this.fit());
    this.size.observe(this.place);
  }

  // `columns`: x, then one array a series; null is a gap. `latest`: words beside the title.
  async update(columns, latest = "") {
    this.data = columns;
    const points = columns.slice(1).reduce((most, column) => Math.max(most, column.filter((v) => v !== null).length), 0);
    this.node.dataset.points = points;
    this.empty.hidden = points > 0;
    this.place.hidden = points === 0;
    this.numbers.hidden = points === 0;
    setText(this.latest, latest);
    if (points === 0) return;
    if (this.plot) {
      this.plot.setData(columns, !this.isZoomed);
      if (this.isZoomed) this.plot.redraw();
    } else if (!this.isMaking) {
      this.isMaking = true;
      try {
        this.make(await load());
      } catch (error) {
        setText(this.latest, "The chart library could not be loaded; the numbers are in the table.");
        console.error(error);
      } finally {
        this.isMaking = false;
      }
    }
    this.fillTable();
  }

  make(UPlot) {
    if (this.isEnded) return;
    const { options } = this;
    const [ink, grid] = [colour("quiet"), colour("line")];
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 },
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
    const x = (value) => (options.time ? moment(value * 1000) : value.toLocaleString("en-US"));
    const plot = new UPlot({
      width: this.width(), height: HEIGHT_PX, padding: [8, 30, 0, 0],
      cursor: { drag: { x: true, y: false } },
      scales: { x: { time: Boolean(options.time) }, y: this.log.checked ? { distr: 3 } :
        { range: (u, low, high) => this.range(UPlot, low, high) } },
      axes: [{ ...axis, label: this.xLabel, labelSize: 18, size: 34,
        space: options.time ? 76 : 50,  // as wide as hh:mm:ss with a gap
        values: (u, splits) => (options.time ? clocks(splits) : splits.map(wholeOnly)) },
      { ...axis, label: options.unit, labelSize: 18, size: widthFor, ...(options.incrs ? { incrs: options.incrs } : {}),
        values: (u, splits) => (this.log.checked ? splits.map((v) => (v === null ? "" : real(v))) :
          options.axis ? splits.map(options.axis) : ticks(splits)) }],
      series: [{ label: this.xLabel, value: (u, v) => (v === null ? "-" : x(v)) },
        ...options.series.map((series, index) => this.seriesOf(series, index))],
      bands: (options.bands || []).map(([upper, lower, name]) =>
        ({ series: [upper, lower], fill: colour(name, options.stacked ? "cc" : "55") })),
      hooks: { setSelect: [(u) => { this.isZoomed = this.isZoomed || u.select.width > 0; }] },
    }, this.data, this.place);
    plot.over.addEventListener("dblclick", () => { this.isZoomed = false; });
    for (const name of plot.root.querySelectorAll(".u-series th")) this.makeSwitch(name);
    plot.root.querySelector(".u-legend").setAttribute("aria-label", `${options.title}: values under the cursor`);
    this.plot = plot;
  }

  seriesOf(series, index) {
    const { options } = this;
    return {
      label: series.label, width: series.faint ? 1 : 2,
      stroke: colour(series.colour, series.faint ? "66" : ""),
      fill: options.stacked && !series.dash ? colour(series.colour, "cc") : undefined,
      dash: series.dash, spanGaps: Boolean(series.sparse),
      points: { show: () => (series.points || this.isShort) && this.isThin(index), size: 6 },
      value: (u, v, at, i) => {
        const value = options.raw && i !== null && i !== undefined ? options.raw(index, i) : v;
        return value === null || value === undefined ? "-" : (options.format || real)(value);
      },
    };
  }

  get xLabel() {
    return this.options.time ? "time" : this.options.xLabel || "step";
  }

  get isShort() {
    return this.data[0].length < 3;
  }

  // Few enough points to mark each.
  isThin(index) {
    return this.data[index + 1].reduce((known, value) => known + (value === null ? 0 : 1), 0) <= MARKED_POINTS;
  }

  range(UPlot, low, high) {
    if (low === null || high === null) return [0, 1];
    if (this.options.fromZero) return [0, high > 0 ? high * 1.06 : 1];
    return UPlot.rangeNum(low, high, 0.08, true);
  }

  // A name in the legend shows and hides its line, by key as by click. Layers of a stack stay.
  makeSwitch(name) {
    if (this.options.stacked || !name.parentNode.previousSibling) return;
    name.setAttribute("tabindex", "0");
    name.setAttribute("role", "button");
    name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      name.click();
    });
  }

  fillTable() {
    if (!this.numbers.open || !this.data) return;
    const { options } = this;
    const length = this.data[0].length;
    const stride = Math.max(1, Math.ceil(length / TABLE_ROWS));
    const rows = [];
    for (let i = length - 1; i >= 0; i -= stride) {
      rows.push([options.time ? moment(this.data[0][i] * 1000) : this.data[0][i].toLocaleString("en-US"),
        ...options.series.map((series, at) => {
          const value = options.raw ? options.raw(at, i) : this.data[at + 1][i];
          return value === null || value === undefined ? "-" : (options.format || real)(value);
        })]);
    }
    const columns = [{ name: this.xLabel, header: true },
      ...options.series.map((series) => ({ name: series.label, numeric: true }))];
    const thinned = stride > 1 ? `, every ${stride}th point` : "";
    this.rows.replaceChildren(plainTable(`${options.title}, the newest first${thinned}`, columns, rows,
      { captionUnseen: false, cards: false }));
  }

  width() {
    return Math.max(200, Math.floor(this.place.clientWidth));
  }

  fit() {
    if (this.plot && this.place.clientWidth && this.plot.width !== this.width()) {
      this.plot.setSize({ width: this.width(), height: HEIGHT_PX });
    }
  }

  rebuild() {
    if (!this.plot) return;
    this.plot.destroy();
    this.plot = null;
    this.make(globalThis.uPlot);
  }

  // Other series, as when a class of memory appears: the chart is made anew.
  setOptions(options) {
    this.options = { ...this.options, ...options };
    this.plot?.destroy();
    this.plot = null;
  }

  end() {
    this.isEnded = true;
    this.theme.removeEventListener("change", this.onTheme);
    this.size.disconnect();
    this.plot?.destroy();
  }
}
