// The page of one job: gets the job, its history, its events as they come and what its ranks report, and hands
// them to the sections. A section is {node, update(view), end()}; view is {job, series, ranks, events, isOperator}.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { changeButtons } from "./change.js";
import { announce, el, fill, fillFor, pairs, setText } from "./dom.js";
import { count, moment, number, percent, rate, real, seconds, short, since } from "./format.js";
import { curves } from "./job_curves.js";
import { eventsSection } from "./job_events.js";
import { logsSection } from "./job_logs.js";
import { memorySection } from "./job_memory.js";
import { planSection } from "./job_plan.js";
import { ranksSection } from "./job_ranks.js";
import { restartsSection } from "./job_restarts.js";
import { specSection } from "./job_spec.js";
import { badge } from "./jobs.js";
import { atMostEvery, repeat } from "./repeat.js";
import { link } from "./router.js";
import { Series, last } from "./series.js";
import { hasEnded, hasRanks, layoutWords, reasonWord, stateWord } from "./words.js";

const DRAW_MS = 1000;
const JOB_MS = 10_000;      // the job itself; a change of its state is told by an event at once
const HISTORY_MS = 30_000;  // thinned anew by the coordinator, with the memory of the meantime
const MEMORY_MS = 5000;
const WAIT_SECONDS = 20;    // of a long poll
const PAUSE_MS = 1000;      // between long polls: steps may take milliseconds
const SECTIONS = [["curves", "Curves", curves], ["memory", "Memory", memorySection], ["plan", "Plan", planSection],
  ["ranks", "Ranks", ranksSection], ["events", "Events", eventsSection], ["logs", "Logs", logsSection],
  ["spec", "Spec", specSection], ["restarts", "Restarts", restartsSection]];

// What is newest of the job's own progress and the steps that came since.
function newest(view, field) {
  const live = view.series ? last(view.series.steps[field]) : null;
  return live === null ? number(view.job.progress?.[field]) : live;
}

function tiles(view) {
  const { job } = view;
  const progress = job.progress || {};
  const step = Math.max(newest(view, "step") || 0, number(progress.step) || 0);
  const steps = number(progress.steps) || number(job.spec?.train?.steps) || 0;
  const stepSeconds = newest(view, "step_seconds");
  const left = !hasEnded(job.state) && job.state !== "PAUSED" && step > 0 && stepSeconds ? seconds((steps - step) * stepSeconds) : null;
  const evalLoss = view.series ? last(view.series.evals.loss) : null;
  const bar = el("progress", { max: Math.max(1, steps), "aria-label": "Steps done" });
  bar.value = step;
  return pairs([
    ["step", el("span", null, `${count(step)} of ${count(steps)}`, bar), left && `about ${left} left`],
    ["loss", real(newest(view, "loss")), `of training, step ${count(step)}`],
    ["eval loss", evalLoss === null && !number(progress.eval_step) ? null : real(evalLoss ?? progress.eval_loss),
      progress.eval_step ? `step ${count(progress.eval_step)}` : null],
    ["speed", rate(newest(view, "tokens_per_second")), `${seconds(stepSeconds)} a step`],
    ["model", short(job.plan?.model?.parameters), "parameters"],
    ["ranks", count(job.plan?.layout?.ranks), [layoutWords(job.plan?.layout), job.plan?.layout?.precision]
      .filter(Boolean).join(", ")],
    ["submitted", moment(job.submitted_unix_ms), job.started_unix_ms && number(job.started_unix_ms) ?
      `ran for ${since(job.started_unix_ms, number(job.finished_unix_ms) || Date.now())}` : "did not run yet"],
    ["checkpoint", number(progress.checkpoint_step) ? `step ${count(progress.checkpoint_step)}` : null,
      number(progress.checkpoint_unix_ms) ? moment(progress.checkpoint_unix_ms) : null],
    ["skipped steps", number(progress.skipped_steps) ? count(progress.skipped_steps) : null,
      percent(progress.skipped_steps, step)],
  ], "tiles");
}

function summary(view) {
  const { job } = view;
  const why = reasonWord(job.reason);
  return [el("p", null, badge(job.state), why ? ` ${why}` : null,
    job.cancel_requested && !hasEnded(job.state) ? " (will stop after this step)" : null,
    job.state === "PAUSED" && number(job.paused_unix_ms) ? ` since ${moment(job.paused_unix_ms)}` : null),
  job.message ? el("p", { class: "message" }, job.message) : null,
  job.progress?.activity && !hasEnded(job.state) ? el("p", { class: "quiet" }, job.progress.activity) : null];
}

export function show(main, route, onEnd) {
  const id = route.parts[1];
  const view = { id, job: null, series: null, ranks: null, ranksProblem: "", events: [], isOperator: false };
  const words = el("div", { id: "summary" }, el("p", { class: "quiet" }, "Loading..."));
  const numbers = el("div", { id: "numbers" });
  const actions = el("div", { class: "bar" },
    el("a", { class: "button", href: link(["compare", id]) }, "Compare with another job"));
  const jumps = el("nav", { "aria-label": "Sections of this job", class: "jumps" },
    SECTIONS.map(([section, name]) => el("a", { href: link(["jobs", id, section]) }, name)));
  const problem = el("p", { class: "notice", role: "alert", hidden: true });
  fill(main, el("h1", { tabindex: "-1" }, id), problem, words, numbers, actions, jumps);
  const stops = [];
  let sections = [];
  let changes = null;
  let afterSequence = null;
  let toldState = "";

  const draw = atMostEvery(DRAW_MS, () => {
    if (!view.job || !main.contains(words)) return;
    const { job } = view;
    fillFor(words, [job.state, job.reason, job.message, job.cancel_requested, job.progress?.activity], () => summary(view));
    fill(numbers, tiles(view));
    changes.update(view);
    for (const section of sections) section.update(view);
    if (toldState && toldState !== job.state) announce(`${id} is now ${stateWord(job.state)}.`);
    toldState = job.state;
  });

  function begin() {
    changes = changeButtons(id, (job) => {
      view.job = job;
      draw();
    });
    actions.append(changes.node);
    sections = SECTIONS.map(([section, name, make]) => make(view, section, name));
    main.append(...sections.map((section) => section.node));
    stops.push(repeat(HISTORY_MS, getHistory), repeat(MEMORY_MS, getMemory));
    if (route.parts[2]) document.getElementById(`${route.parts[2]}-title`)?.scrollIntoView();
  }

  async function getJob(signal) {
    try {
      view.job = await api.job(id, signal);
      problem.hidden = true;
    } catch (error) {
      if (error.status > 0) {
        problem.hidden = false;
        setText(problem, error.message);
        if (!view.job) fill(words, el("p", null, "Go to ", el("a", { href: "#/jobs" }, "the list of jobs"), "."));
        if (error.status === 404) return false;
      }
      throw error;
    }
    if (!sections.length) begin();
    draw();
    return true;
  }

  async function getHistory(signal) {
    const history = await api.history(id, signal);
    view.series = new Series(history);
    view.historySequence = number(history.last_sequence) || 0;
    if (afterSequence === null) {
      afterSequence = view.historySequence;
      view.openedSequence = afterSequence;
      stops.push(repeat(PAUSE_MS, getEvents));
    }
    for (const event of view.events) if (number(event.sequence) > view.historySequence) view.series.add(event);
    draw();
    return !hasEnded(view.job.state);
  }

  // Steps change the curves, everything else may have changed the job.
  async function getEvents(signal) {
    const answer = await api.events(id, afterSequence, WAIT_SECONDS, signal);
    let isJobNew = false;
    for (const event of answer.events || []) {
      afterSequence = Math.max(afterSequence, number(event.sequence) || 0);
      view.events.push(event);
      view.series?.add(event);
      if (event.state || event.checkpoint) isJobNew = true;
    }
    if (view.events.length > 4000) view.events.splice(0, view.events.length - 4000);
    if (isJobNew) await getJob(signal);
    if (answer.events?.length) draw();
    return !answer.over;
  }

  async function getMemory(signal) {
    if (hasEnded(view.job.state)) {
      view.ranks = null;
      view.ranksProblem = "The job has ended: its ranks hold nothing any more.";
      draw();
      return false;
    }
    if (!hasRanks(view.job.state)) {
      view.ranksProblem = `The job is ${stateWord(view.job.state)}: it has no ranks now.`;
      view.ranks = null;
      return true;
    }
    try {
      view.ranks = (await api.memory(id, signal)).ranks || [];
      view.ranksProblem = view.ranks.length ? "" : "No rank has reported yet.";
    } catch (error) {
      if (error.status !== 409) throw error;
      view.ranks = null;
      view.ranksProblem = error.message;
    }
    draw();
    return true;
  }

  // Whether anybody may change it does not change while the coordinator runs; the list of jobs tells it.
  async function getRights(signal) {
    view.isOperator = Boolean((await api.jobs({ state: "active", offset: 0, limit: 1 }, signal)).operator);
    draw();
    return false;
  }

  stops.push(
    repeat(JOB_MS, getRights),
    repeat(JOB_MS, async (signal) => (await getJob(signal)) && !hasEnded(view.job.state)),
  );
  onEnd(() => {
    stops.forEach((stop) => stop());
    sections.forEach((section) => section.end?.());
  });
}
