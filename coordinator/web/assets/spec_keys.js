// A spec as dotted keys with values as text. Pure.
//
// The resolved spec has other names and units than YAML for a few keys, and marks what Terrace chooses by 0, -1 or
// "": the value is then the plan's.
// SPDX-License-Identifier: Apache-2.0

// {"train.steps": "100"}: nested objects become dotted keys, lists one value.
export function flatten(value, prefix = "", result = {}) {
  if (Array.isArray(value)) {
    result[prefix] = value.map((item) => (item !== null && typeof item === "object" ? JSON.stringify(item) : item)).join(", ");
  } else if (value !== null && typeof value === "object") {
    for (const [key, inner] of Object.entries(value)) flatten(inner, prefix ? `${prefix}.${key}` : key, result);
  } else {
    result[prefix] = String(value);
  }
  return result;
}

// Cuts a comment off: '#' at the beginning or after white space, outside quotes.
function withoutComment(line) {
  let quote = "";
  for (let i = 0; i < line.length; i += 1) {
    const character = line[i];
    if (quote) quote = character === quote ? "" : quote;
    else if (character === '"' || character === "'") quote = character;
    else if (character === "#" && (i === 0 || /\s/.test(line[i - 1]))) return line.slice(0, i);
  }
  return line;
}

const unquoted = (text) => text.trim().replace(/^(["'])(.*)\1$/, "$2");

// What stands between the outer brackets, split at commas that are in no inner bracket and no quotes.
function parts(text) {
  const found = [];
  let [depth, quote, from] = [0, "", 0];
  for (let i = 0; i <= text.length; i += 1) {
    const character = text[i];
    if (i === text.length || (character === "," && depth === 0 && !quote)) {
      if (text.slice(from, i).trim()) found.push(text.slice(from, i).trim());
      from = i + 1;
    } else if (quote) quote = character === quote ? "" : quote;
    else if (character === '"' || character === "'") quote = character;
    else if ("[{".includes(character)) depth += 1;
    else if ("]}".includes(character)) depth -= 1;
  }
  return found;
}

function put(result, key, text) {
  const value = text.trim();
  if (/^\{.*\}$/.test(value)) {
    for (const part of parts(value.slice(1, -1))) {
      const colon = part.indexOf(":");
      if (colon > 0) put(result, `${key}.${unquoted(part.slice(0, colon))}`, part.slice(colon + 1));
    }
  } else if (/^\[.*\]$/.test(value)) {
    result[key] = parts(value.slice(1, -1)).map(unquoted).join(", ");
  } else {
    result[key] = unquoted(value);
  }
}

// The keys of a YAML mapping. It was accepted by the coordinator, so this reads what specs are made of, mappings by
// indentation and in braces, lists, scalars, and shows of the rest what it can: the text stands beside it anyhow.
export function writtenKeys(yaml) {
  try {
    return flatten(JSON.parse(yaml));
  } catch {
    // YAML that is not JSON
  }
  const result = {};
  const open = [];  // {indent, key} of the mappings around a line
  for (const raw of yaml.split("\n")) {
    const line = withoutComment(raw).trimEnd();
    const indent = line.search(/\S/);
    if (indent < 0 || /^(---|%)/.test(line)) continue;
    const item = line.match(/^\s*-\s+(.*)$/);
    if (item && open.length) {
      const key = open[open.length - 1].key;
      result[key] = result[key] ? `${result[key]}, ${unquoted(item[1])}` : unquoted(item[1]);
      continue;
    }
    const match = line.match(/^\s*("[^"]*"|'[^']*'|[^\s:#][^:]*?)\s*:(?:\s+(.*))?$/);
    if (!match) continue;
    while (open.length && open[open.length - 1].indent >= indent) open.pop();
    const key = [...open.map((entry) => entry.name), unquoted(match[1])].join(".");
    if (match[2] === undefined || match[2] === "") open.push({ indent, name: unquoted(match[1]), key });
    else put(result, key, match[2]);
  }
  return result;
}

// Keys of the resolved spec -> of YAML, where they differ.
const NAMES = { "train.optimizer.beta1": "train.optimizer.betas", "train.optimizer.beta2": "train.optimizer.betas",
  "layout.bucket_bytes": "layout.bucket_size", "resources.nodes_min": "resources.nodes",
  "resources.nodes_max": "resources.nodes", "resources.nvme.endurance_bytes": "resources.nvme.endurance",
  "resources.nvme": "resources.nvme.paths" };
// Keys of the layout in a spec -> in a plan.
const CHOSEN = { dp: "data_parallel", tp: "tensor_parallel", pp: "pipeline_parallel", cp: "context_parallel",
  zero: "zero_stage" };
const UNSET = new Set(["", "0", "-1", undefined]);
const LEFT_OUT = ["yaml", "model.config_json"];

// [{key, value, written, origin}], in the order of the spec: `written` is the text of the YAML or null.
export function origins(job) {
  const spec = flatten(job.spec || {});
  const written = writtenKeys(job.spec?.yaml || "");
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
    const given = spec[full];
    const isGiven = of(full) !== null || (!UNSET.has(given) && given === value);
    rows.push({ key: full, value, written: of(full), origin: isGiven ? "written" : "chosen" });
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
