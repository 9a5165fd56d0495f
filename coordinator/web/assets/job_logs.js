// The log of one rank, followed while the section can be seen. The newest lines are kept, the others are forgotten
// here; `terrace logs` has them all.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { el, fill, section, setText, visible } from "./dom.js";
import { count } from "./format.js";
import { repeat } from "./repeat.js";
import { hasEnded } from "./words.js";

const PERIOD_MS = 2000;
const TAIL = 200;
const MAX_CHARACTERS = 400_000;
const MAX_CHOICES = 512;  // ranks that a list offers; beyond, their number is typed

function rankInput(onChange) {
  const select = el("select", { onchange: () => onChange(Number(select.value)) });
  const input = el("input", { type: "number", min: 0, value: 0, "aria-label": "Rank",
    onchange: () => onChange(Math.max(0, Number(input.value) || 0)) });
  let ranks = 0;
  return {
    node: el("span", null, select, input),
    offer(n) {
      if (n === ranks) return;
      ranks = n;
      const chosen = select.value || "0";
      const isShort = n <= MAX_CHOICES;
      select.hidden = !isShort;
      input.hidden = isShort;
      input.max = String(n - 1);
      if (isShort) fill(select, Array.from({ length: n }, (_, rank) => el("option", { value: rank }, rank)));
      if (isShort && Number(chosen) < n) select.value = chosen;
    },
  };
}

export function logsSection(view, id, name) {
  let rank = 0;
  let position = null;  // {epoch, offset} behind what is shown
  let stop = null;
  let isSeen = false;
  let present = view;

  const text = document.createTextNode("");
  const box = el("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log of the rank" }, text);
  const words = el("p", { class: "quiet", role: "status" });
  const choice = rankInput((chosen) => {
    rank = chosen;
    begin();
  });
  const follow = el("input", { type: "checkbox", onchange: () => begin() });
  follow.checked = true;

  // Keeps the newest characters, from the beginning of a line.
  function show(added) {
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const whole = text.data + visible(added.replaceAll("\r\n", "\n"));
    let from = Math.max(0, whole.length - MAX_CHARACTERS);
    if (from > 0) from = whole.indexOf("\n", from) + 1;
    text.data = whole.slice(from);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  async function read(signal) {
    const mine = rank;
    const where = position ? { rank, epoch: position.epoch, offset: position.offset } : { rank, tail: TAIL };
    try {
      const answer = await api.logs(view.id, where, signal);
      if (mine !== rank) return true;
      position = { epoch: answer.epoch, offset: answer.offset };
      if (answer.text) show(answer.text);
      setText(words, text.data ? "" : `Rank ${count(rank)} has written nothing yet.`);
    } catch (error) {
      if (error.status > 0) setText(words, error.message);
      throw error;
    }
    return follow.checked && !hasEnded(present.job.state);
  }

  function begin() {
    stop?.();
    stop = null;
    position = null;
    text.data = "";
    setText(words, "Loading...");
    if (isSeen) stop = repeat(PERIOD_MS, read);
  }

  const node = section(name, id, el("div", { class: "bar" }, el("label", null, "Rank ", choice.node),
    el("label", null, follow, " follow")), words, box);
  const watcher = new IntersectionObserver((entries) => {
    isSeen = entries[entries.length - 1].isIntersecting;
    if (!isSeen) stop?.();
    else if (!stop && !position) begin();
    else if (follow.checked) stop = repeat(PERIOD_MS, read);
  });
  watcher.observe(node);
  return {
    node,
    update(now) {
      present = now;
      choice.offer(Math.max(1, now.job.plan?.layout?.ranks || now.job.placement?.ranks?.length || 1));
    },
    end() {
      watcher.disconnect();
      stop?.();
    },
  };
}
