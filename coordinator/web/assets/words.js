// The words for enumerations of the protocol, and what belongs to them: which states wait, which have ended,
// which colour a class of memory has.
// SPDX-License-Identifier: Apache-2.0

export const WAITING = ["PENDING", "PLANNING", "QUEUED"];
export const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED"];
export const STATES = [...WAITING, "STARTING", "RUNNING", "PAUSED", "RECOVERING", ...ENDED];

export const hasEnded = (state) => ENDED.includes(state);
export const hasRanks = (state) => ["STARTING", "RUNNING"].includes(state);

export function stateWord(state) {
  return (state || "JOB_STATE_UNSPECIFIED").toLowerCase().replaceAll("_", " ");
}

// REASON_WAITING_FOR_DEVICES is "waiting for devices"; no reason is "".
export function reasonWord(reason) {
  if (!reason || reason === "REASON_NONE") return "";
  return reason.replace(/^REASON_/, "").toLowerCase().replaceAll("_", " ");
}

const TIERS = { DEVICE: "device", HBM: "device", HOST: "host", NVME: "NVMe" };
export const tierWord = (tier) => TIERS[tier] || String(tier || "unknown").toLowerCase();

// From the bottom of a stack to its top: what stays for the whole job lies below what comes and goes.
export const CLASSES = ["PARAMETER", "OPTIMIZER", "GRADIENT", "ACTIVATION", "COMMUNICATION", "WORKSPACE", "INPUT",
  "EXTERNAL"];
const CLASS_WORDS = { PARAMETER: "parameters", OPTIMIZER: "optimizer state", GRADIENT: "gradients",
  ACTIVATION: "activations", COMMUNICATION: "communication", WORKSPACE: "workspace", INPUT: "input",
  EXTERNAL: "outside the arenas", BUFFER_CLASS_UNSPECIFIED: "alignment and gaps" };
export const classWord = (name) => CLASS_WORDS[name || "BUFFER_CLASS_UNSPECIFIED"] || String(name).toLowerCase();

// A layout as the list of jobs tells it, without what is as in one rank: "dp 4, tp 1, zero 0, bf16" is "dp 4, bf16".
export function shortLayout(text) {
  return (text || "").split(", ").filter((part) => !/^((dp|tp|pp|cp) 1|zero 0|recompute none)$/.test(part)).join(", ");
}

// dp 2, tp 4: the degrees above 1, and what else is not the plain case.
export function layoutWords(layout) {
  if (!layout) return "";
  const words = [["dp", "data_parallel"], ["tp", "tensor_parallel"], ["pp", "pipeline_parallel"],
    ["cp", "context_parallel"]].filter(([, field]) => Number(layout[field] || 0) > 1)
    .map(([name, field]) => `${name} ${layout[field]}`);
  if (Number(layout.zero_stage || 0) > 0) words.push(`ZeRO ${layout.zero_stage}`);
  if (layout.recompute && layout.recompute !== "none") words.push(`recompute ${layout.recompute}`);
  return words.join(", ") || "one rank";
}
