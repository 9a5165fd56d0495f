// The history of a job as columns for charts. Pure: no element and no request.
// SPDX-License-Identifier: Apache-2.0
import { number } from "./format.js";
import { CLASSES } from "./words.js";

const STEP_FIELDS = ["step", "unix_ms", "loss", "loss_min", "loss_max", "grad_norm", "learning_rate",
  "tokens_per_second", "step_seconds"];
const CHECKPOINT_FIELDS = ["step", "unix_ms", "seconds"];
const EVAL_FIELDS = ["step", "unix_ms", "loss"];

// Columns in which x grows. Steps that were done again after a restart replace what they repeat.
export function monotone(columns, fields) {
  const result = Object.fromEntries(fields.map((field) => [field, []]));
  const length = columns?.step?.length || 0;
  for (let i = 0; i < length; i += 1) append(result, fields, (field) => columns[field]?.[i]);
  return result;
}

function append(columns, fields, value) {
  const step = number(value("step"));
  if (step === null) return;
  let kept = columns.step.length;
  while (kept > 0 && columns.step[kept - 1] >= step) kept -= 1;
  for (const field of fields) {
    columns[field].length = kept;
    columns[field].push(number(value(field)));
  }
}

// What a job page and a comparison draw: the history, and what live events have added.
export class Series {
  constructor(history) {
    this.steps = monotone(history.steps, STEP_FIELDS);
    this.evals = monotone(history.evals, EVAL_FIELDS);
    this.checkpoints = monotone(history.checkpoints, CHECKPOINT_FIELDS);
    this.memory = history.memory || { unix_ms: [], tiers: [], reserved: [] };
  }

  // Whether the charts change.
  add(event) {
    if (event.step) {
      append(this.steps, STEP_FIELDS, valueOf(event, event.step));
    } else if (event.eval) {
      append(this.evals, EVAL_FIELDS, valueOf(event, event.eval));
    } else if (event.checkpoint) {
      append(this.checkpoints, CHECKPOINT_FIELDS, valueOf(event, event.checkpoint));
    } else {
      return false;
    }
    return true;
  }

}

// field -> its value in an event. In proto3 JSON a number that is 0 is left out.
const valueOf = (event, what) => (field) =>
  (field === "unix_ms" ? event.unix_ms : what[field.startsWith("loss") ? "loss" : field] ?? 0);

// [x, one column a source]: sources [{x: [], y: []}] with growing x, joined; null where a source has no point.
export function join(sources) {
  const at = new Map();
  for (const source of sources) for (const x of source.x) at.set(x, 0);
  const x = [...at.keys()].sort((a, b) => a - b);
  x.forEach((value, index) => at.set(value, index));
  return [x, ...sources.map((source) => {
    const column = new Array(x.length).fill(null);
    source.x.forEach((value, index) => { column[at.get(value)] = source.y[index]; });
    return column;
  })];
}

export const last = (column) => {
  for (let i = column.length - 1; i >= 0; i -= 1) if (column[i] !== null) return column[i];
  return null;
};

// The classes of one tier in the order of a stack, and what is reserved: {x, classes: [{name, bytes}], reserved}.
export function memoryOf(memory, tier) {
  const x = (memory.unix_ms || []).map((ms) => Number(ms) / 1000);
  const classes = (memory.tiers || []).filter((column) => column.tier === tier)
    .map((column) => ({ name: column.class, bytes: column.bytes.map((value) => number(value) || 0) }))
    .filter((column) => column.bytes.some((value) => value > 0));
  const place = (name) => (CLASSES.includes(name) ? CLASSES.indexOf(name) : CLASSES.length);
  classes.sort((a, b) => place(a.name) - place(b.name));
  const reserved = (memory.reserved || []).find((column) => column.tier === tier)?.bytes.map(number) || [];
  return { x, classes, reserved };
}

// Sums from the bottom: the last is the whole.
export function stack(columns) {
  const sums = [];
  columns.forEach((column, at) => sums.push(at === 0 ? column.slice() : column.map((v, i) => v + sums[at - 1][i])));
  return sums;
}
