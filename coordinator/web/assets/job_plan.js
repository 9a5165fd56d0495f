// The plan beside what was measured: memory of each tier, step time and speed, the stages, the alternatives, and
// the coordinator's own report of the plan in a frame without rights.
// SPDX-License-Identifier: Apache-2.0
import { planUrl } from "./api.js";
import { el, fillFor, pairs, section } from "./dom.js";
import { UNKNOWN, bytes, count, number, percent, rate, real, seconds } from "./format.js";
import { plainTable, setRows, table } from "./table.js";
import { classWord, layoutWords, tierWord } from "./words.js";

const MEAN_OF = 20;  // newest points that a measured mean is over

const mostOf = (values) => values.reduce((most, value) => (value === null ? most : Math.max(most ?? value, value)), null);

function meanOfNewest(column) {
  const known = (column || []).filter((value) => value !== null).slice(-MEAN_OF);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

// What ranks reserve on a tier now, or the most that the history knows.
function measuredOn(view, tier) {
  const now = (view.ranks || []).flatMap((rank) => rank.tiers || []).filter((entry) => (entry.tier || "DEVICE") === tier)
    .map((entry) => number(entry.reserved_bytes));
  if (now.length) return mostOf(now);
  const column = (view.series?.memory.reserved || []).find((entry) => entry.tier === tier);
  return column ? mostOf(column.bytes.map(number)) : null;
}

function difference(measured, predicted) {
  if (measured === null || !predicted) return UNKNOWN;
  return `${measured > predicted ? "+" : ""}${real(100 * (measured / predicted - 1), 3)} %`;
}

function memoryRows(view) {
  const stages = view.job.plan.memory || [];
  const rows = [];
  for (const tier of [...new Set(stages.map((stage) => stage.tier || "DEVICE"))]) {
    const mine = stages.filter((stage) => (stage.tier || "DEVICE") === tier);
    const predicted = mostOf(mine.map((stage) => number(stage.arena_bytes) || 0));
    const measured = measuredOn(view, tier);
    const limit = mostOf(mine.map((stage) => number(stage.limit_bytes)));
    rows.push([`${tierWord(tier)}: arena`, bytes(predicted), bytes(measured), difference(measured, predicted),
      limit ? bytes(limit) : "none"]);
    const outside = mostOf(mine.map((stage) => number(stage.external_bytes) || 0));
    if (outside) {
      const seen = mostOf([...(view.ranks || []).map((rank) => number(rank.external_bytes)),
        number(view.job.progress?.external_bytes)]);
      rows.push([`${tierWord(tier)}: outside the arena`, bytes(outside), bytes(seen), difference(seen, outside), ""]);
    }
  }
  return rows;
}

function timeRows(view) {
  const time = view.job.plan.time || {};
  const step = meanOfNewest(view.series?.steps.step_seconds);
  const speed = meanOfNewest(view.series?.steps.tokens_per_second);
  return [["step time", seconds(time.step_seconds), seconds(step), difference(step, number(time.step_seconds)), ""],
    ["speed", rate(time.tokens_per_second), rate(speed), difference(speed, number(time.tokens_per_second)), ""]];
}

const ifAny = (value) => (number(value) ? seconds(value) : null);

function expectations(plan) {
  const time = plan.time || {};
  return pairs([
    ["layout", layoutWords(plan.layout)],
    ["nearest to its limit", plan.binding_constraint],
    ["of a step: computation", seconds(time.compute_seconds || 0)],
    ["exposed communication", ifAny(time.exposed_communication_seconds)],
    ["exposed offload", ifAny(time.exposed_offload_seconds)],
    ["optimizer", ifAny(time.optimizer_seconds)],
    ["bubbles over computation", number(time.bubble_ratio) ? percent(time.bubble_ratio, 1) : null],
    ["model FLOPs used", number(time.mfu) ? percent(time.mfu, 1) : null],
    ["whole job", seconds(time.total_seconds)],
    ["a checkpoint", bytes(plan.checkpoint_bytes)],
    ["instructions of a step", count(plan.instructions)],
    ["search", plan.search ? `${count(plan.search.candidates || 0)} layouts compared, ` +
      `${count(plan.search.compiled || 0)} compiled and simulated` : null],
  ]);
}

function stagesTable(plan) {
  const rows = (plan.memory || []).map((stage) => {
    const lines = (stage.lines || []).map((line) => `${classWord(line.class)} ${bytes(line.bytes || 0)}`);
    return [`stage ${stage.stage || 0}, ${tierWord(stage.tier || "DEVICE")}`, bytes(stage.arena_bytes || 0),
      bytes(stage.lower_bound_bytes || 0), bytes(stage.external_bytes || 0),
      number(stage.limit_bytes) ? bytes(stage.limit_bytes) : "none", lines.join(", ") || UNKNOWN];
  });
  return plainTable("Stages: memory at the peak", [{ name: "stage", header: true }, { name: "arena", numeric: true },
    { name: "lower bound", numeric: true }, { name: "outside", numeric: true }, { name: "limit", numeric: true },
    { name: "classes" }], rows, { captionUnseen: false });
}

function alternativesTable(plan) {
  if (!plan.alternatives?.length) return null;
  const rows = plan.alternatives.map((other) => [layoutWords(other.layout), seconds(other.step_seconds),
    bytes(other.device_bytes || other.arena_bytes), number(other.host_bytes) ? bytes(other.host_bytes) : UNKNOWN,
    other.fits ? "yes" : "no", other.note || UNKNOWN]);
  return plainTable("Alternatives", [{ name: "layout", header: true }, { name: "step time", numeric: true },
    { name: "device", numeric: true }, { name: "host", numeric: true }, { name: "fits" }, { name: "note" }], rows,
  { captionUnseen: false });
}

// The frame is filled when it is opened: it shows the report, and may run, send and open nothing.
function report(id) {
  const details = el("details", { class: "report" },
    el("summary", null, "The whole report: timeline of a step, stages, memory over the step"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("iframe")) return;
    details.append(el("iframe", { sandbox: true, title: `Report of the plan of ${id}`, src: planUrl(id) }));
  });
  return details;
}

export function planSection(view, id, name) {
  const measured = table("Predicted and measured", [{ name: "what", header: true }, { name: "predicted", numeric: true },
    { name: "measured", numeric: true }, { name: "difference", numeric: true }, { name: "limit", numeric: true }],
  { captionUnseen: false });
  const planned = el("div");
  const whole = report(view.id);
  return {
    node: section(name, id, measured.node, planned, whole),
    update(now) {
      const { plan } = now.job;
      measured.node.hidden = !plan;
      whole.hidden = !plan;
      if (!plan) {
        fillFor(planned, null, () => el("p", { class: "quiet" }, "The job has no plan."));
        return;
      }
      setRows(measured, [...memoryRows(now), ...timeRows(now)], (row) => row[0], (row) => row);
      fillFor(planned, plan, () => [(plan.remarks || []).map((remark) => el("p", { class: "message" }, `Note: ${remark}`)),
        expectations(plan), stagesTable(plan), alternativesTable(plan)]);
    },
  };
}
