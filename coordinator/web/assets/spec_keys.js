// A spec as dotted keys with values as text. Pure.
//
// The resolved spec has other names and units than YAML for a few keys, and marks what Terrace chooses by 0, -1 or
// "": the value is then the plan's.
// SPDX-License-Identifier: Apache-2.0
import { parseYaml } from "./yaml.js";

// {"train.steps": "100"}: nested objects become dotted keys, lists one value.
export function flatten(value, prefix = "", result = {}) {
  if (Array.isArray(value)) {
    const text = (item) => (item !== null && typeof item === "object" ? JSON.stringify(item) : item);
    result[prefix] = value.map(text).join(", ");
  } else if (value !== null && typeof value === "object") {
    for (const [key, inner] of Object.entries(value)) flatten(inner, prefix ? `${prefix}.${key}` : key, result);
  } else {
    result[prefix] = String(value);
  }
  return result;
}

// Keys of the resolved spec -> of YAML, where they differ.
const NAMES = { "train.optimizer.beta1": "train.optimizer.betas", "train.optimizer.beta2": "train.optimizer.betas",
  "layout.bucket_bytes": "layout.bucket_size", "resources.nodes_min": "resources.nodes",
  "resources.nodes_max": "resources.nodes", "resources.nvme.endurance_bytes": "resources.nvme.endurance",
  "resources.nvme": "resources.nvme.paths",
  "layout.parameter_format": "formats.parameter", "layout.gradient_format": "formats.gradient",
  "layout.reduce_format": "formats.reduce", "layout.moments_format": "formats.moments",
  "layout.activation_format": "formats.activation", "layout.gather_format": "formats.gather", "layout.precision": "train.precision" };
// Keys of the layout in a spec -> in a plan.
const CHOSEN = { dp: "data_parallel", tp: "tensor_parallel", pp: "pipeline_parallel", cp: "context_parallel",
  zero: "zero_stage" };
const UNSET = new Set(["", "0", "-1", undefined]);
const LEFT_OUT = ["yaml", "model.config_json"];

// [{key, value, written, origin}], in the order of the spec: `written` is the text of the YAML or null.
export function origins(job) {
  const spec = flatten(job.spec || {});
  const written = flatten(parseYaml(job.spec?.yaml || ""));
  const plan = flatten(job.plan?.layout || {});
  const rows = [];
  const of = (key) => {
    const name = Object.hasOwn(NAMES, key) ? NAMES[key] : key;
    if (Object.hasOwn(written, name)) return written[name];
    const inner = Object.keys(written).filter((other) => other.startsWith(`${name}.`));
    return inner.length ? inner.map((other) => `${other.slice(name.length + 1)}: ${written[other]}`).join(", ") : null;
  };
  for (const [key, value] of Object.entries(spec)) {
    if (LEFT_OUT.includes(key) || key.startsWith("layout.")) continue;
    rows.push({ key, value, written: of(key), origin: of(key) === null ? "default" : "written" });
  }
  for (const [key, value] of Object.entries(plan)) {
    const short = Object.keys(CHOSEN).find((name) => CHOSEN[name] === key) || key;
    const full = `layout.${short}`;
    // "layout.offload.gradient: host" stands in the plan as layout.offload.gradient.host.
    const parent = full.slice(0, full.lastIndexOf("."));
    const text = of(full) ?? (parent !== "layout" && Object.hasOwn(written, parent) ? written[parent] : null);
    const isDefault = !UNSET.has(spec[full]) && spec[full] === value;
    rows.push({ key: full, value, written: text, origin: text !== null ? "written" : isDefault ? "default" : "chosen" });
  }
  return rows;
}

// Keys in which two jobs differ: [{key, a, b}].
export function differences(a, b) {
  const [first, second] = [a, b].map((job) => new Map(origins(job).map((row) => [row.key, row.value])));
  const keys = [...new Set([...first.keys(), ...second.keys()])];
  return keys.filter((key) => first.get(key) !== second.get(key))
    .map((key) => ({ key, a: first.get(key) ?? "-", b: second.get(key) ?? "-" }));
}
