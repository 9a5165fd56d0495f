// Memory over the job's whole life: for each tier the classes as stacked areas, of the rank that holds most, with
// what is reserved and what the plan predicts as lines.
// SPDX-License-Identifier: Apache-2.0
import { Chart } from "./charts.js";
import { el, section } from "./dom.js";
import { byteUnit, bytes, number } from "./format.js";
import { memoryOf, stack } from "./series.js";
import { CLASSES, classWord, tierWord } from "./words.js";

const ORDER = ["DEVICE", "HOST", "NVME"];

// What the plan reserves on a tier, of the stage with most; null where it says nothing.
export function predictedOf(job, tier) {
  const stages = (job.plan?.memory || []).filter((stage) => (stage.tier || "DEVICE") === tier);
  return stages.length ? Math.max(...stages.map((stage) => number(stage.arena_bytes) || 0)) : null;
}

const colourOf = (item) => `m${Math.max(0, CLASSES.indexOf(item.name)) + 1}`;

function tiersOf(memory) {
  const found = new Set([...(memory.tiers || []), ...(memory.reserved || [])].map((column) => column.tier));
  return [...found].sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
}

function optionsOf(tier, classes, hasPlan, sums) {
  const most = Math.max(1, ...sums.flatMap((column) => column.reduce((max, v) => Math.max(max, v || 0), 0)));
  const { divisor, unit } = byteUnit(most);
  const fromTop = [...classes].reverse();
  return {
    incrs: [1e-3, 1e-2, 0.1, 1, 10, 100, 1000].flatMap((size) => [1, 2, 5].map((n) => n * size * divisor)),
    title: `Memory on ${tierWord(tier)}`, unit, time: true, stacked: true, fromZero: true,
    empty: "No rank has reported its memory yet.", format: bytes,
    axis: (value) => String(Number((value / divisor).toPrecision(3))),
    // From the top of the stack down, as in the picture; lines behind them.
    series: [...fromTop.map((item) => ({ label: classWord(item.name), colour: colourOf(item) })),
    { label: "reserved", colour: "ink", dash: [6, 3] },
    hasPlan && { label: "predicted", colour: "c2", dash: [2, 3] }].filter(Boolean),
    bands: fromTop.slice(0, -1).map((item, i) => [i + 1, i + 2, colourOf(item)]),
  };
}

export function memorySection(view, id, name) {
  const grid = el("div", { class: "charts" });
  const nothing = el("p", { class: "quiet" }, "No rank has reported its memory yet.");
  const charts = new Map();  // tier -> {chart, key}

  function drawTier(job, memory, tier) {
    const { x, classes, reserved } = memoryOf(memory, tier);
    const predicted = predictedOf(job, tier);
    const values = classes.map((item) => item.bytes).reverse();
    const lines = [x.map((_, i) => reserved[i] ?? null)];
    if (predicted !== null) lines.push(x.map(() => predicted));
    const sums = [...stack(classes.map((item) => item.bytes)).reverse(), ...lines];
    const options = optionsOf(tier, classes, predicted !== null, sums);
    const key = JSON.stringify([classes.map((item) => item.name), predicted !== null, options.unit]);
    let entry = charts.get(tier);
    if (!entry) {
      entry = { chart: new Chart(grid, options), key };
      charts.set(tier, entry);
    } else if (entry.key !== key) {
      entry.chart.setOptions(options);
      entry.key = key;
    }
    const columns = [...values, ...lines];
    entry.chart.options.raw = (index, i) => columns[index]?.[i];
    const now = reserved[reserved.length - 1];
    entry.chart.update([x, ...sums], now ? `${bytes(now)} reserved` : "");
  }

  return {
    node: section(name, id, el("p", { class: "quiet" },
      "Of the rank that holds most, over the job's whole life; the older, the coarser."), nothing, grid),
    update({ job, series }) {
      if (!series) return;
      const tiers = tiersOf(series.memory);
      nothing.hidden = tiers.length > 0;
      for (const tier of tiers) drawTier(job, series.memory, tier);
    },
    end() {
      for (const { chart } of charts.values()) chart.end();
    },
  };
}
