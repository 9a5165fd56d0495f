// The spec as it was written beside what the coordinator made of it: every key with its value, and whether it was
// written, is a default, or was chosen by Terrace.
// SPDX-License-Identifier: Apache-2.0
import { el, fill, section } from "./dom.js";
import { plainTable } from "./table.js";
import { flatten, origins } from "./spec_keys.js";

const WORDS = { written: "written", default: "default", chosen: "chosen by Terrace" };

// 3e-4 is 0.0003; of two betas written in one list each is a key of its own; a model written in place is shown whole.
function isSame(written, value) {
  return value === "(inline)" || [written, ...written.split(", ")].some((text) => text === value ||
    (text !== "" && Number(text.replaceAll("_", "")) === Number(value)));
}

function resolvedTable(job) {
  const rows = origins(job).map(({ key, value, written, origin }) => {
    const isOther = origin === "written" && written !== null && !isSame(written, value);
    return [key, written === null ? "-" : written, el("span", { class: isOther ? "differs" : null }, value),
      el("span", { class: `origin ${origin}` }, WORDS[origin])];
  });
  return plainTable("The resolved spec", [{ name: "key", header: true }, { name: "as written" },
    { name: "resolved" }, { name: "origin" }], rows, { captionUnseen: false });
}

function configOf(job) {
  const text = job.spec?.model?.config_json;
  if (!text) return null;
  let rows;
  try {
    rows = Object.entries(flatten(JSON.parse(text)));
  } catch {
    rows = [["config.json", text]];
  }
  return el("details", null, el("summary", null, "The model's config.json"),
    plainTable("config.json", [{ name: "key", header: true }, { name: "value" }], rows));
}

export function specSection(view, id, name) {
  const place = el("div", { class: "beside spec" });
  let version = null;
  return {
    node: section(name, id, place),
    update({ job }) {
      const key = `${Boolean(job.plan)}${JSON.stringify(job.spec)}${JSON.stringify(job.plan?.layout)}`;
      if (key === version) return;
      version = key;
      fill(place, el("div", null, el("h3", null, "spec.yaml, as submitted"),
        el("pre", { class: "yaml", tabindex: "0", role: "region", "aria-label": "spec.yaml" }, job.spec?.yaml || "")),
      el("div", null, resolvedTable(job), configOf(job)));
    },
  };
}
