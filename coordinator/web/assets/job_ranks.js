// The ranks as a heat map: a table with a row for each node and a column for each device. The arrow keys go from
// rank to rank; the chosen one is told in full below.
// SPDX-License-Identifier: Apache-2.0
import { el, fill, pairs, section, setText } from "./dom.js";
import { UNKNOWN, bytes, count, moment, number, percent, seconds } from "./format.js";
import { classWord, tierWord } from "./words.js";

const LEVELS = 8;
const deviceOf = (rank) => (rank.tiers || []).find((tier) => (tier.tier || "DEVICE") === "DEVICE") || {};
const live = (tier) => (tier.live || []).reduce((sum, item) => sum + (number(item.bytes) || 0), 0);
const stepOf = (rank) => number(rank.step) || 0;

// value(rank, all): a number, more of it is darker; words(value): with its unit.
const MEASURES = {
  reserved: { name: "device memory reserved", words: bytes, value: (rank) => number(deviceOf(rank).reserved_bytes) },
  live: { name: "device memory in live buffers", words: bytes, value: (rank) => live(deviceOf(rank)) },
  limit: { name: "part of the device limit", words: (v) => percent(v, 1), value: (rank) => {
    const tier = deviceOf(rank);
    const limit = number(tier.limit_bytes) || number(tier.capacity_bytes);
    return limit ? ((number(tier.reserved_bytes) || 0) + (number(rank.external_bytes) || 0)) / limit : null;
  } },
  external: { name: "memory outside the arenas", words: bytes, value: (rank) => number(rank.external_bytes) },
  host: { name: "host memory pinned", words: bytes, value: (rank) => number(rank.host_pinned_bytes) || 0 },
  stall: { name: "stalled by offload, since the start", words: seconds,
    value: (rank) => number(rank.offload_stall_seconds) || 0 },
  behind: { name: "steps behind the first", words: (v) => `${count(v)} steps`,
    value: (rank, all) => Math.max(...all.map(stepOf)) - stepOf(rank) },
};

function detail(rank, where) {
  const tiers = (rank.tiers || []).map((tier) => [tierWord(tier.tier || "DEVICE"),
    `${bytes(tier.reserved_bytes || 0)} reserved, ${bytes(tier.predicted_bytes || 0)} predicted`,
    [number(tier.limit_bytes) ? `limit ${bytes(tier.limit_bytes)}` : "no limit",
      ...(tier.live || []).map((item) => `${classWord(item.class)} ${bytes(item.bytes || 0)}`)].join(", ")]);
  const allocator = rank.allocator || {};
  return pairs([["rank", count(rank.rank || 0), where],
    ["step", count(stepOf(rank)), [rank.sequence, rank.instruction].filter(Boolean).join(": ") || "between steps"],
    ...tiers,
    ["outside the arenas", bytes(rank.external_bytes || 0), number(rank.external_allowed_bytes) ?
      `of ${bytes(rank.external_allowed_bytes)} allowed` : null],
    ["allocator", allocator.mode, allocator.mode ? `${bytes(allocator.allocated_bytes || 0)} allocated of ` +
      `${bytes(allocator.reserved_bytes || 0)}, ${count(allocator.retries || 0)} retries` : null],
    ["stalled by offload", seconds(rank.offload_stall_seconds || 0)],
    ["driver counts", number(rank.driver_bytes) ? bytes(rank.driver_bytes) : null, rank.driver_source],
    ["reported", moment(rank.unix_ms)]]);
}

// worker -> device -> {rank}, in the order of ranks.
function gridOf(job, ranks) {
  const known = new Map(ranks.map((rank) => [number(rank.rank) || 0, rank]));
  const rows = new Map();
  let width = 0;
  for (const place of job.placement?.ranks || []) {
    const [rank, device] = [number(place.rank) || 0, number(place.device) || 0];
    const worker = place.worker || "unknown";
    if (!rows.has(worker)) rows.set(worker, new Map());
    rows.get(worker).set(device, { number: rank, report: known.get(rank) || null });
    width = Math.max(width, device + 1);
  }
  return { rows, width };
}

export function ranksSection(view, id, name) {
  let present = view;
  let chosen = null;
  let shape = "";
  const cells = new Map();  // rank -> {cell, button}
  const measure = el("select", { onchange: () => paint() }, Object.entries(MEASURES).map(([key, { name: words }]) =>
    el("option", { value: key }, words)));
  const words = el("p", { class: "quiet" });
  const scale = el("p", { class: "scale", "aria-hidden": "true" });
  const place = el("div", { class: "wide" });
  const about = el("div", { "aria-live": "polite" });

  function choose(rank, isFocused) {
    chosen = rank;
    for (const [number_, { button }] of cells) {
      button.tabIndex = number_ === rank ? 0 : -1;
      button.setAttribute("aria-pressed", number_ === rank ? "true" : "false");
    }
    if (isFocused) cells.get(rank)?.button.focus();
    tell();
  }

  function tell() {
    const report = (present.ranks || []).find((rank) => (number(rank.rank) || 0) === chosen);
    const where = (present.job.placement?.ranks || []).find((rank) => (number(rank.rank) || 0) === chosen);
    about.hidden = chosen === null;
    if (chosen === null) return;
    const place_ = where ? `${where.worker}, device ${where.device || 0}` : "";
    // A screen reader hears the choice; the numbers that change under it are not told again and again.
    about.setAttribute("aria-live", about.shownOf === chosen ? "off" : "polite");
    about.shownOf = chosen;
    fill(about, report ? detail(report, place_) : el("p", null, `Rank ${chosen} has not reported.`));
  }

  function onKey(event) {
    const at = event.target.closest("td");
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!at || !moves[event.key]) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const row = at.parentNode;
    const target = place.querySelector("tbody").rows[row.rowIndex - 1 + down]?.cells[at.cellIndex + right];
    const button = target?.querySelector("button");
    if (button) choose(Number(button.dataset.rank), true);
  }

  function build({ rows, width }) {
    cells.clear();
    const body = [...rows].map(([worker, devices]) => el("tr", null, el("th", { scope: "row" }, worker),
      Array.from({ length: width }, (_, device) => {
        const entry = devices.get(device);
        if (!entry) return el("td");
        const button = el("button", { type: "button", "data-rank": entry.number, tabindex: "-1",
          onclick: () => choose(entry.number, false) });
        const cell = el("td", null, button);
        cells.set(entry.number, { cell, button });
        return cell;
      })));
    fill(place, el("table", { class: "heat", onkeydown: onKey },
      el("caption", { class: "unseen" }, "Ranks by node and device. Arrow keys go from rank to rank."),
      el("thead", null, el("tr", null, el("th", { scope: "col" }, "node"),
        Array.from({ length: width }, (_, device) => el("th", { scope: "col" }, `device ${device}`)))),
      el("tbody", null, body)));
    if (!cells.has(chosen)) chosen = null;
    const first = cells.keys().next();
    const entry = cells.get(chosen ?? first.value);
    if (entry) entry.button.tabIndex = 0;
  }

  function paint() {
    const { value, words: say } = MEASURES[measure.value];
    const ranks = present.ranks || [];
    const values = new Map(ranks.map((rank) => [number(rank.rank) || 0, value(rank, ranks)]));
    const known = [...values.values()].filter((v) => v !== null);
    const [least, most] = [Math.min(...known), Math.max(...known)];
    for (const [rank, { cell, button }] of cells) {
      const v = values.get(rank) ?? null;
      const level = v === null ? "none" : most > least ? Math.round(((v - least) / (most - least)) * (LEVELS - 1)) : 0;
      cell.className = `heat-${level}`;
      setText(button, `${rank}: ${v === null ? UNKNOWN : say(v)}`);
      button.setAttribute("aria-label", `Rank ${rank}: ${v === null ? "not reported" : say(v)}`);
    }
    const range = most > least ? `faint: ${say(least)}, strong: ${say(most)}` : `all ${say(most)}`;
    setText(scale, known.length === 0 ? "" : range);
    tell();
  }

  return {
    node: section(name, id, el("div", { class: "bar" }, el("label", null, "Colour by ", measure), scale), words, place,
      about),
    update(now) {
      present = now;
      const grid = gridOf(now.job, now.ranks || []);
      setText(words, now.ranksProblem || "");
      const hasAny = Boolean(now.ranks?.length && grid.rows.size);
      place.hidden = !hasAny;
      scale.hidden = !hasAny;
      if (!hasAny) {
        about.hidden = true;
        return;
      }
      const key = JSON.stringify(now.job.placement);
      if (key !== shape) {
        shape = key;
        build(grid);
      }
      paint();
    },
  };
}
