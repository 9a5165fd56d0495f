// What happened to the job, the newest first. Steps are in the curves, and left out here unless they are asked for.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { el, fill, section, setText } from "./dom.js";
import { bytes, count, moment, number, rate, real, seconds } from "./format.js";
import { reasonWord, stateWord } from "./words.js";

const SHOWN = 300;
const EARLIER = 2000;  // events that are looked through at once for earlier ones

const KINDS = [["state", "states"], ["checkpoint", "checkpoints"], ["eval", "evaluations"], ["warning", "warnings"],
  ["activity", "activities"], ["step", "steps"]];
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
      return `checkpoint of step ${count(what.step || 0)}, ${bytes(what.bytes || 0)} in ${seconds(what.seconds || 0)}, ` +
        `${seconds(what.stall_seconds || 0)} of it training stood: ${what.path || ""}`;
    case "eval":
      return `evaluation at step ${count(what.step || 0)}: loss ${real(what.loss || 0)} in ${seconds(what.seconds || 0)}`;
    case "warning":
      return `rank ${rank}: ${what.text || ""}`;
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
  const wanted = new Set(["state", "checkpoint", "eval", "warning", "activity"]);
  const list = el("ol", { class: "events", reversed: true });
  const words = el("p", { class: "quiet" });
  let present = view;
  let earlier = [];
  let isWhole = false;
  let begun = false;
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
  const more = el("button", { type: "button", onclick: () => getEarlier() }, "Look for earlier events");

  // Reads the EARLIER events before the oldest that is known, in as many answers as the coordinator wants.
  async function getEarlier() {
    more.disabled = true;
    try {
      const oldest = number(earlier[0]?.sequence ?? present.events[0]?.sequence) ?? (present.historySequence || 0) + 1;
      let after = Math.max(0, oldest - 1 - EARLIER);
      const found = [];
      while (after < oldest - 1) {
        const answer = await api.events(view.id, after, 0);
        const part = (answer.events || []).filter((event) => number(event.sequence) < oldest);
        if (part.length === 0) break;
        found.push(...part);
        after = number(part[part.length - 1].sequence);
      }
      isWhole = oldest - 1 - EARLIER <= 0 || found.length === 0;
      earlier = [...found, ...earlier];
    } catch (error) {
      setText(words, error.message);
      begun = begun && error.status > 0;
    } finally {
      more.disabled = false;
    }
    draw();
  }

  function draw() {
    const all = [...earlier, ...present.events];
    const matching = all.filter((event) => wanted.has(kindOf(event)));
    const shown = matching.slice(-SHOWN).reverse();
    const key = `${shown.length}/${shown[0]?.sequence}/${shown[shown.length - 1]?.sequence}/${[...wanted]}`;
    more.hidden = isWhole;
    if (key === shownOf) return;
    shownOf = key;
    fill(list, shown.map((event) => el("li", { class: `event ${kindOf(event)}` },
      el("time", { datetime: new Date(number(event.unix_ms) || 0).toISOString() }, moment(event.unix_ms)),
      el("span", { class: "kind" }, kindOf(event)), el("span", null, sentence(event)))));
    setText(words, shown.length === 0 ? "No event of these kinds." :
      `${count(shown.length)} of ${count(matching.length)} events of these kinds, the newest first.`);
  }

  return {
    node: section(name, id, el("fieldset", { class: "bar" }, el("legend", { class: "unseen" }, "Kinds of events"), boxes),
      words, list, more),
    update(now) {
      present = now;
      if (!begun && now.series) {
        begun = true;
        getEarlier();
      }
      draw();
    },
  };
}
