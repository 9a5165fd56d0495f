// Curves over the steps: loss with its range and evaluations, learning rate, gradient norm, speed, step time.
// SPDX-License-Identifier: Apache-2.0
import { Chart } from "./charts.js";
import { el, section } from "./dom.js";
import { count, rate, real, seconds } from "./format.js";
import { join, last } from "./series.js";

const SIMPLE = [
  { field: "learning_rate", title: "Learning rate", unit: "per step", format: real, colour: "c3" },
  { field: "grad_norm", title: "Gradient norm", unit: "norm before clipping", format: real, colour: "c4",
    canLog: true },
  { field: "tokens_per_second", title: "Speed", unit: "tokens/s", format: rate, colour: "c5", fromZero: true },
  { field: "step_seconds", title: "Step time", unit: "s", format: seconds, colour: "c6", fromZero: true,
    canLog: true },
];
const CHECKPOINTS = { title: "Checkpoint write time", unit: "s", format: seconds, fromZero: true,
  empty: "No checkpoint was written yet.", series: [{ label: "write time", colour: "c1", sparse: true, points: true }] };

function lossChart(parent) {
  return new Chart(parent, {
    canLog: true, title: "Loss", unit: "nats a token", format: real, empty: "No step was done yet.",
    series: [{ label: "train", colour: "c1" }, { label: "max", colour: "c1", faint: true },
      { label: "min", colour: "c1", faint: true }, { label: "eval", colour: "c2", sparse: true, points: true }],
    bands: [[2, 3, "c1"]],
  });
}

export function curves(view, id, name) {
  const grid = el("div", { class: "charts" });
  const loss = lossChart(grid);
  const simple = SIMPLE.map((options) => new Chart(grid, { ...options, empty: "No step was done yet.",
    series: [{ label: options.title.toLowerCase(), colour: options.colour }] }));
  const checkpoints = new Chart(grid, CHECKPOINTS);
  return {
    node: section(name, id, grid),
    update({ series }) {
      if (!series) return;
      const { steps, evals } = series;
      const at = last(steps.step);
      const words = (value) => (at === null ? "" : `${value} at step ${count(at)}`);
      loss.update(join([{ x: steps.step, y: steps.loss }, { x: steps.step, y: steps.loss_max },
        { x: steps.step, y: steps.loss_min }, { x: evals.step, y: evals.loss }]), words(real(last(steps.loss))));
      simple.forEach((chart, index) => {
        const column = steps[SIMPLE[index].field];
        chart.update([steps.step, column], words(SIMPLE[index].format(last(column))));
      });
      const written = series.checkpoints;
      checkpoints.update([written.step, written.seconds],
        written.step.length ? `the last at step ${count(last(written.step))}` : "");
    },
    end() {
      [loss, ...simple, checkpoints].forEach((chart) => chart.end());
    },
  };
}
