// The nodes: state, devices, memory, what was measured of them, and their last sign of life.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { el, fill, setText } from "./dom.js";
import { UNKNOWN, bytes, count, number, real, since } from "./format.js";
import { repeat } from "./repeat.js";
import { setRows, table } from "./table.js";

const PERIOD_MS = 3000;
const BADGES = { ready: "running", draining: "starting", drained: "cancelled" };

const COLUMNS = [{ name: "node", header: true }, { name: "state" }, { name: "devices used" }, { name: "device" },
  { name: "memory", numeric: true }, { name: "cores", numeric: true }, { name: "measured", numeric: true },
  { name: "last heartbeat" }, { name: "address" }, { name: "remarks" }];

const perSecond = (value, size, unit) => (number(value) ? `${real(value / size, 3)} ${unit}` : UNKNOWN);

function deviceWords(node) {
  if (node.device === "cuda") return [node.device_name || "CUDA", node.gpus ? `${count(node.gpus)} GPUs` : ""];
  const threads = number(node.threads_per_device) || 0;
  return [`CPU${node.instruction_set ? `, ${node.instruction_set}` : ""}`,
    `${count(threads)} ${threads === 1 ? "thread" : "threads"} a device`];
}

function usedCell(node, row) {
  row.bar = row.bar || el("meter", { min: 0, "aria-label": `Devices of ${node.name} in use` });
  row.words = row.words || el("span");
  row.used = row.used || el("span", { class: "progress" }, row.words, row.bar);
  const [used, all] = [number(node.devices_used) || 0, number(node.devices) || 0];
  setText(row.words, `${count(used)} of ${count(all)}`);
  row.bar.max = Math.max(1, all);
  row.bar.value = used;
  return row.used;
}

function cellsOf(node, row) {
  const profile = node.profile || {};
  if (row.state !== node.state) {
    row.state = node.state;
    row.badge = el("span", { class: `badge ${BADGES[node.state] || "failed"}` }, node.state || "unknown");
  }
  const address = (node.address || UNKNOWN).replace(/^ipv4:/, "");
  const others = [node.data_address && `data ${node.data_address}`,
    node.metrics_address && `metrics ${node.metrics_address}`].filter(Boolean).join(", ");
  return [[node.name, node.version || ""], row.badge, usedCell(node, row), deviceWords(node),
    [bytes(node.memory_bytes), number(node.device_memory_bytes) ? `${bytes(node.device_memory_bytes)} a device` : ""],
    count(node.cores), [`${perSecond(profile.bf16_flops_per_second, 1e12, "TFLOP/s")} in bf16`,
      `memory ${perSecond(profile.memory_bytes_per_second, 2 ** 30, "GiB/s")}`],
    `${since(node.last_heartbeat_unix_ms, Date.now())} ago`, [address, others],
    [node.problem, profile.doubt].filter(Boolean).join(" ") || UNKNOWN];
}

export function show(main, route, onEnd) {
  const list = table("Nodes", COLUMNS);
  const words = el("p", { class: "quiet" }, "Loading...");
  fill(main, el("h1", { tabindex: "-1" }, "Nodes"), words, list.node);
  onEnd(repeat(PERIOD_MS, async (signal) => {
    const nodes = (await api.nodes(signal)).nodes || [];
    const sum = (field) => nodes.reduce((total, node) => total + (number(node[field]) || 0), 0);
    const counts = (words, ...states) => {
      const found = nodes.filter((node) => states.includes(node.state)).length;
      return found ? `, ${count(found)} ${words}` : "";
    };
    setText(words, nodes.length === 0 ?
      "No worker has registered. Start one with: terrace-worker --coordinator HOST:PORT --name NAME" :
      `${count(nodes.length)} ${nodes.length === 1 ? "node" : "nodes"}, ${count(sum("devices_used"))} of ` +
      `${count(sum("devices"))} devices in use${counts("lost", "away", "lost")}${counts("drained", "draining", "drained")}.`);
    list.node.hidden = nodes.length === 0;
    setRows(list, nodes, (node) => node.name || "", cellsOf);
  }));
}
