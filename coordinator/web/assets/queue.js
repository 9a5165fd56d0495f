// The queue: jobs that wait, in the order of their submission, each with the reason and the sentence that says
// what it waits for.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { el, fill, setText } from "./dom.js";
import { count, moment, seconds, short, since } from "./format.js";
import { badge } from "./jobs.js";
import { repeat } from "./repeat.js";
import { link } from "./router.js";
import { setRows, table } from "./table.js";
import { WAITING, reasonWord } from "./words.js";

const PERIOD_MS = 3000;
const LIMIT = 200;  // of one state, the oldest

const COLUMNS = [{ name: "job", header: true }, { name: "state" }, { name: "reason" }, { name: "what it waits for" },
  { name: "ranks", numeric: true }, { name: "parameters", numeric: true }, { name: "submitted" }, { name: "waits for" },
  { name: "starts in" }];

// The coordinator lists the newest first: the oldest are behind what was left out the last time.
async function oldest(state, left, signal) {
  const answer = await api.jobs({ state, offset: left[state] || 0, limit: LIMIT }, signal);
  const now = Math.max(0, answer.total - LIMIT);
  if (now === (left[state] || 0)) return answer;
  left[state] = now;
  return api.jobs({ state, offset: now, limit: LIMIT }, signal);
}

// About when it may start, or "not known"; the title says what that rests on, or why.
function starts(job, row, nowMs) {
  row.starts = row.starts || el("span", {});
  row.starts.title = job.estimate || "";
  const inSeconds = Math.max(0, (job.estimated_start_unix_ms - nowMs) / 1000);
  setText(row.starts, job.estimated_start_unix_ms ? `about ${seconds(inSeconds)}` : "not known");
  return row.starts;
}

export function show(main, route, onEnd) {
  const list = table("Jobs that wait, the oldest first", COLUMNS);
  const left = {};
  const words = el("p", { class: "quiet" }, "Loading...");
  fill(main, el("h1", { tabindex: "-1" }, "Queue"), words, list.node);
  onEnd(repeat(PERIOD_MS, async (signal) => {
    const answers = await Promise.all(WAITING.map((state) => oldest(state, left, signal)));
    const waiting = answers.flatMap((answer) => answer.jobs);
    waiting.sort((a, b) => a.submitted_unix_ms - b.submitted_unix_ms);
    const total = answers.reduce((sum, answer) => sum + answer.total, 0);
    const nowMs = answers[0].unix_ms;
    setText(words, total === 0 ? "No job waits." : `${count(total)} ${total === 1 ? "job waits" : "jobs wait"}.` +
      (total > waiting.length ? ` The oldest ${count(waiting.length)} are shown.` : ""));
    list.node.hidden = waiting.length === 0;
    setRows(list, waiting, (job) => job.id, (job, row) => {
      row.name = row.name || el("a", { href: link(["jobs", job.id]) }, job.id);
      row.badge = row.state === job.state ? row.badge : badge(job.state);
      row.state = job.state;
      return [row.name, row.badge, reasonWord(job.reason) || "-", job.message || "-", count(job.ranks),
        short(job.parameters), moment(job.submitted_unix_ms, nowMs),
        since(job.resumed_unix_ms || job.submitted_unix_ms, nowMs), starts(job, row, nowMs)];
    });
  }));
}
