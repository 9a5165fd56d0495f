// Two jobs side by side: their curves in one chart each, and the keys in which their specs differ.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { Chart } from "./charts.js";
import { el, fill, pairs, setText } from "./dom.js";
import { bytes, count, number, rate, real, seconds } from "./format.js";
import { badge } from "./jobs.js";
import { predictedOf } from "./job_memory.js";
import { repeat } from "./repeat.js";
import { link } from "./router.js";
import { Series, join, last } from "./series.js";
import { differences } from "./spec_keys.js";
import { plainTable } from "./table.js";
import { hasEnded, layoutWords } from "./words.js";

const PERIOD_MS = 5000;
const CHOICES = 200;  // jobs that are offered while a name is typed
const TYPING_MS = 250;
const AXES = { step: "step", seconds: "seconds since the first step", tokens: "tokens trained on" };
const CHARTS = [
  { title: "Training loss", unit: "nats a token", format: real, of: "steps", field: "loss",
    canLog: true },
  { title: "Eval loss", unit: "nats a token", format: real, of: "evals", field: "loss", points: true,
    canLog: true },
  { title: "Gradient norm", unit: "norm before clipping", format: real, of: "steps", field: "grad_norm" },
  { title: "Learning rate", unit: "per step", format: real, of: "steps", field: "learning_rate" },
  { title: "Speed", unit: "tokens/s", format: rate, of: "steps", field: "tokens_per_second", fromZero: true },
  { title: "Step time", unit: "s", format: seconds, of: "steps", field: "step_seconds", fromZero: true },
];

function chooser(ids) {
  const list = el("datalist", { id: "job-names" });
  let typing = 0;
  const offer = (text) => {
    clearTimeout(typing);
    typing = setTimeout(async () => {
      try {
        const answer = await api.jobs({ state: "", q: text, offset: 0, limit: CHOICES });
        fill(list, answer.jobs.map((job) => el("option", { value: job.id })));
      } catch {
        // Without offers a name can be typed.
      }
    }, TYPING_MS);
  };
  const inputs = [0, 1].map((index) => el("input", { id: `job-${index + 1}`, list: "job-names", value: ids[index] || "",
    autocomplete: "off", spellcheck: "false", required: true, oninput: (event) => offer(event.target.value.trim()) }));
  offer("");
  return el("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    location.hash = link(["compare", ...inputs.map((input) => input.value.trim())]);
  } }, el("label", null, "First job ", inputs[0]), el("label", null, "Second job ", inputs[1]), list,
  el("button", { type: "submit" }, "Compare"));
}

// The x of a job's points: as they are, or counted in time or tokens since its first step.
function xOf(side, columns, axis) {
  if (axis === "seconds") {
    const start = side.series.steps.unix_ms[0] || columns.unix_ms[0] || 0;
    return columns.unix_ms.map((ms) => Math.max(0, Math.round(((ms || start) - start) / 100) / 10));
  }
  const train = side.job.spec?.train || {};
  const perStep = (number(train.global_batch) || 0) * (number(side.job.spec?.data?.sequence_length) || 0);
  return axis === "tokens" ? columns.step.map((step) => step * perStep) : columns.step;
}

function growing(x, y) {
  const kept = { x: [], y: [] };
  x.forEach((value, i) => {
    if (kept.x.length && value <= kept.x[kept.x.length - 1]) return;
    kept.x.push(value);
    kept.y.push(y[i]);
  });
  return kept;
}

function factsOf({ job, series }) {
  return pairs([["state", badge(job.state)],
    ["steps", `${count(last(series.steps.step) || 0)} of ${count(job.spec?.train?.steps)}`],
    ["loss", real(last(series.steps.loss))], ["eval loss", real(last(series.evals.loss))],
    ["speed", rate(last(series.steps.tokens_per_second))], ["step time", seconds(last(series.steps.step_seconds))],
    ["layout", layoutWords(job.plan?.layout)], ["arena", bytes(predictedOf(job, "DEVICE"))]]);
}

function differencesTable([a, b]) {
  const rows = differences(a.job, b.job).map((row) => [row.key, row.a, row.b]);
  if (!rows.length) return el("p", null, "The two specs and layouts are the same.");
  return plainTable("Keys that differ", [{ name: "key", header: true }, { name: a.job.id }, { name: b.job.id }], rows,
    { captionUnseen: false });
}

export function show(main, route, onEnd) {
  const ids = route.parts.slice(1, 3);
  fill(main, el("h1", { tabindex: "-1" }, ids.length === 2 ? `${ids[0]} and ${ids[1]}` : "Compare two jobs"), chooser(ids));
  if (ids.length < 2) return;
  const problem = el("p", { class: "notice", role: "alert", hidden: true });
  const axis = el("select", { id: "axis", onchange: () => draw() },
    Object.entries(AXES).map(([value, words]) => el("option", { value }, words)));
  const facts = el("div", { class: "beside" });
  const different = el("div", { id: "differences" });
  const grid = el("div", { class: "charts" });
  main.append(problem, facts, el("h2", null, "Curves"), el("p", { class: "bar" }, el("label", null, "Over ", axis)), grid,
    el("h2", null, "Specs"), different);
  const charts = CHARTS.map((options) => new Chart(grid, { ...options, empty: "Neither job has recorded this.",
    xLabel: AXES.step, series: ids.map((id, index) =>
      ({ label: index === 1 && ids[0] === id ? `${id} (again)` : id, colour: `c${index + 1}`, sparse: true,
        points: options.points })) }));
  let sides = [];
  let drawnAxis = "step";

  function draw() {
    if (sides.length < 2) return;
    fill(facts, sides.map((side) => el("div", null,
      el("h3", null, el("a", { href: link(["jobs", side.job.id]) }, side.job.id)), factsOf(side))));
    fill(different, differencesTable(sides));
    charts.forEach((chart, index) => {
      const { of, field } = CHARTS[index];
      if (drawnAxis !== axis.value) chart.setOptions({ xLabel: AXES[axis.value] });
      chart.update(join(sides.map((side) => growing(xOf(side, side.series[of], axis.value), side.series[of][field]))));
    });
    drawnAxis = axis.value;
  }

  onEnd(repeat(PERIOD_MS, async (signal) => {
    try {
      sides = await Promise.all(ids.map(async (id) => {
        const [job, history] = await Promise.all([api.job(id, signal), api.history(id, signal)]);
        return { job, series: new Series(history) };
      }));
      problem.hidden = true;
    } catch (error) {
      if (error.status > 0) {
        problem.hidden = false;
        setText(problem, error.message);
      }
      throw error;
    }
    draw();
    return sides.some((side) => !hasEnded(side.job.state));
  }));
  onEnd(() => charts.forEach((chart) => chart.end()));
}
