// The list of jobs: filtered by state and text, in pages, newest first; two of them can be picked to compare.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { announce, el, fill, setText } from "./dom.js";
import { count, moment, real, seconds, rate, short, since } from "./format.js";
import { repeat } from "./repeat.js";
import { link, rewrite } from "./router.js";
import { setRows, table } from "./table.js";
import { STATES, reasonWord, shortLayout, stateWord } from "./words.js";

const PERIOD_MS = 2000;
const LIMIT = 100;
const TYPING_MS = 250;

const COLUMNS = [{ name: "compare" }, { name: "job", header: true }, { name: "state" },
  { name: "step", numeric: true }, { name: "loss", numeric: true }, { name: "speed", numeric: true },
  { name: "ranks" }, { name: "parameters", numeric: true }, { name: "submitted" }, { name: "restarts", numeric: true }];

export function badge(state) {
  return el("span", { class: `badge ${String(state).toLowerCase().replace(/[^a-z_]/g, "")}` }, stateWord(state));
}

// The nodes of a row are made once, and belong to it.
function partsOf(row, job, onPick) {
  if (!row.parts) {
    const pick = el("input", { type: "checkbox", "aria-label": `Compare ${job.id}`, onchange: () => onPick(job.id) });
    row.parts = { pick, name: el("a", { href: link(["jobs", job.id]) }, job.id), state: el("span"),
      bar: el("progress", { max: 1, "aria-label": `Progress of ${job.id}` }), step: el("span") };
    row.parts.progress = el("span", { class: "progress" }, row.parts.step, row.parts.bar);
  }
  return row.parts;
}

function cellsOf(job, row, nowMs, picked, onPick) {
  const parts = partsOf(row, job, onPick);
  parts.pick.checked = picked.includes(job.id);
  const why = reasonWord(job.reason);
  const telling = `${job.state}/${why}/${job.message}`;
  if (row.telling !== telling) {
    row.telling = telling;
    fill(parts.state, badge(job.state), why ? el("small", { title: job.message }, ` ${why}`) : null);
  }
  setText(parts.step, `${count(job.step || 0)} of ${count(job.steps)}`);
  parts.bar.value = job.steps ? (job.step || 0) / job.steps : 0;
  return [parts.pick, parts.name, parts.state, parts.progress,
    [real(job.loss), job.eval_loss === null ? "" : `eval ${real(job.eval_loss)}`],
    [rate(job.tokens_per_second), job.step_seconds ? `${seconds(job.step_seconds)} a step` : ""],
    [count(job.ranks), shortLayout(job.layout)], short(job.parameters),
    [moment(job.submitted_unix_ms, nowMs), job.started_unix_ms ?
      `ran for ${since(job.started_unix_ms, job.finished_unix_ms || nowMs)}` : ""], count(job.restarts || 0)];
}

function stateOptions(select, counts, chosen) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const of = (states) => states.reduce((sum, state) => sum + (counts[state] || 0), 0);
  const ended = of(["SUCCEEDED", "FAILED", "CANCELLED"]);
  const options = [["", "all", all], ["active", "active", all - ended], ["ended", "ended", ended],
    ...STATES.map((state) => [state, stateWord(state), counts[state] || 0])];
  if (select.options.length !== options.length) {
    fill(select, options.map(([value, words]) => el("option", { value }, words)));
    select.value = chosen;
  }
  options.forEach(([, words, n], index) => setText(select.options[index], `${words} (${n})`));
}

export function show(main, route, onEnd) {
  const filter = { state: STATES.concat("active", "ended").includes(route.query.state) ? route.query.state : "",
    q: route.query.q || "", offset: Math.max(0, Math.floor(Number(route.query.offset)) || 0) };
  let picked = [];
  let stop = () => {};

  const select = el("select", { id: "state", onchange: () => change({ state: select.value, offset: 0 }) });
  const text = el("input", { id: "text", type: "search", maxlength: 200, autocomplete: "off", spellcheck: "false",
    placeholder: "part of a name", value: filter.q });
  let typing = 0;
  text.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ q: text.value.trim(), offset: 0 }), TYPING_MS);
  });
  const shownOf = el("p", { id: "shown", class: "quiet" }, "Loading...");
  const older = el("button", { type: "button", onclick: () => change({ offset: filter.offset + LIMIT }) }, "Older");
  const newer = el("button", { type: "button",
    onclick: () => change({ offset: Math.max(0, filter.offset - LIMIT) }) }, "Newer");
  const compare = el("a", { class: "button", hidden: true }, "Compare the two");
  const problem = el("p", { class: "notice", role: "alert", hidden: true });
  const list = table("Jobs, newest first", COLUMNS);
  list.node.id = "jobs";
  stateOptions(select, {}, filter.state);

  function change(what) {
    Object.assign(filter, what);
    rewrite(["jobs"], filter);
    stop();
    begin(true);
  }

  function onPick(id) {
    picked = picked.includes(id) ? picked.filter((other) => other !== id) : [...picked, id].slice(-2);
    for (const row of list.body.children) row.parts.pick.checked = picked.includes(row.key);
    compare.hidden = picked.length !== 2;
    if (picked.length === 2) compare.href = link(["compare", ...picked]);
  }

  function draw(answer, isNewFilter) {
    stateOptions(select, answer.counts || {}, filter.state);
    setRows(list, answer.jobs, (job) => job.id,
      (job, row) => cellsOf(job, row, answer.unix_ms, picked, onPick));
    const last = filter.offset + answer.jobs.length;
    const range = answer.total === 0 ? (filter.state || filter.q ? "No job matches this filter." :
      "No job was submitted yet. Submit one with: terrace submit job.yaml") :
      `${count(answer.jobs.length ? filter.offset + 1 : 0)} to ${count(last)} of ${count(answer.total)} jobs`;
    setText(shownOf, range);
    newer.disabled = filter.offset === 0;
    older.disabled = last >= answer.total;
    list.node.hidden = answer.jobs.length === 0;
    if (isNewFilter) announce(range);
  }

  function begin(isNewFilter) {
    stop = repeat(PERIOD_MS, async (signal) => {
      try {
        const answer = await api.jobs({ ...filter, limit: LIMIT }, signal);
        problem.hidden = true;
        draw(answer, isNewFilter);
        isNewFilter = false;
      } catch (error) {
        if (error.status > 0) {
          problem.hidden = false;
          setText(problem, error.message);
        }
        throw error;
      }
    });
  }

  fill(main, el("h1", { tabindex: "-1" }, "Jobs"),
    el("form", { role: "search", class: "bar", onsubmit: (event) => event.preventDefault() },
      el("label", null, "State ", select), el("label", null, "Name contains ", text), compare),
    problem,
    el("nav", { class: "bar", "aria-label": "Pages of the list" }, shownOf, newer, older),
    list.node);
  begin(false);
  onEnd(() => {
    clearTimeout(typing);
    stop();
  });
}
