// What happened to the job, the newest first. Steps are in the curves, and left out here unless they are asked for.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { el, fill, section, setText } from "./dom.js";
import { bytes, count, moment, number, rate, real, seconds } from "./format.js";
import { reasonWord, stateWord } from "./words.js";

const SHOWN = 300;

const KINDS = [["state", "states"], ["checkpoint", "checkpoints"], ["eval", "evaluations"], ["warning", "warnings"],
  ["slow", "slow ranks"], ["activity", "activities"], ["step", "steps"]];
const kindOf = (event) => KINDS.map(([kind]) => kind).find((kind) => event[kind]) || "";

function sentence(event) {
  const kind = kindOf(event);
  const what = event[kind] || {};
  const rank = number(what.rank) || 0;
  switch (kind) {
    case "state": {
      const why = reasonWord(what.reason);
      return `${stateWord(what.state)}${why ? ` (${why})` : ""}${what.message ? `: ${what.message}` : ""}`;
    }
    case "checkpoint":
      return `checkpoint of step ${count(what.step || 0)}: ${bytes(what.bytes || 0)} in ${seconds(what.seconds || 0)}, ` +
        `training waited ${seconds(what.stall_seconds || 0)}: ${what.path || ""}`;
    case "eval":
      return `evaluation at step ${count(what.step || 0)}: loss ${real(what.loss || 0)} in ${seconds(what.seconds || 0)}`;
    case "warning":
      return `rank ${rank}: ${what.text || ""}`;
    case "slow":
    case "activity":
      return what.text || "";
    case "step":
      return `step ${count(what.step || 0)}: loss ${real(what.loss || 0)}, ${rate(what.tokens_per_second || 0)}, ` +
        `${seconds(what.step_seconds || 0)}${what.skipped ? ", skipped" : ""}`;
    default:
      return "an event that this page does not know";
  }
}

export function eventsSection(view, id, name) {
  const wanted = new Set(["state", "checkpoint", "eval", "warning", "slow", "activity"]);
  const list = el("ol", { class: "events", reversed: true });
  const words = el("p", { class: "quiet" });
  let present = view;
  let earlier = [];
  let isAsked = false;
  let shownOf = "";

  const boxes = KINDS.map(([kind, plural]) => {
    const box = el("input", { type: "checkbox", onchange: () => {
      if (box.checked) wanted.add(kind);
      else wanted.delete(kind);
      draw();
    } });
    box.checked = wanted.has(kind);
    return el("label", null, box, ` ${plural}`);
  });

  // Reads what the coordinator kept of the time before the page was opened, in as many answers as it wants.
  async function getEarlier() {
    const before = present.openedSequence || 0;
    let after = 0;
    try {
      while (after < before) {
        const answer = await api.events(view.id, after, 0);
        const part = (answer.events || []).filter((event) => number(event.sequence) <= before);
        if (part.length === 0) break;
        earlier.push(...part);
        after = number(part[part.length - 1].sequence);
      }
    } catch (error) {
      earlier = [];
      isAsked = error.status > 0;  // silence is asked again
    }
    draw();
  }

  function draw() {
    const all = [...earlier, ...present.events];
    const matching = all.filter((event) => wanted.has(kindOf(event)));
    const shown = matching.slice(-SHOWN).reverse();
    const key = `${shown.length}/${shown[0]?.sequence}/${shown[shown.length - 1]?.sequence}/${[...wanted]}`;
    if (key === shownOf) return;
    shownOf = key;
    fill(list, shown.map((event) => el("li", { class: `event ${kindOf(event)}` },
      el("time", { datetime: new Date(number(event.unix_ms) || 0).toISOString() }, moment(event.unix_ms)),
      el("span", { class: "kind" }, kindOf(event)), el("span", null, sentence(event)))));
    setText(words, shown.length === 0 ? "No event of these kinds." :
      `${count(shown.length)} of ${count(matching.length)} events of these kinds, the newest first. ` +
      "The coordinator keeps the newest 4,096 of all kinds.");
  }

  return {
    node: section(name, id, el("fieldset", { class: "bar" }, el("legend", { class: "unseen" }, "Kinds of events"), boxes),
      words, list),
    update(now) {
      present = now;
      if (!isAsked && now.series) {
        isAsked = true;
        getEarlier();
      }
      draw();
    },
  };
}
