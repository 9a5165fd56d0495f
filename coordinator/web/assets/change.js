// Cancels, pauses, holds and resumes a job: asks for confirmation and the operator's token, which this tab alone keeps until
// it is closed.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { announce, el, fill, setText } from "./dom.js";
import { WAITING, hasEnded } from "./words.js";

const KEY = "terrace-operator-token";

const canPause = (job) => job.state !== "PAUSED" && !job.cancel_requested && (!job.pause_requested || job.resume_requested);

// `is` says of a job whether there is the button; `force` is what the box beside the confirmation says, if there is one.
const CHANGES = [
  { what: "pause", name: "Pause", send: "Pause the job", back: "Let it run", done: "will be paused",
    words: "It stops after the present step, writes a checkpoint and frees its devices. Resume it, and it goes on " +
      "from there.",
    force: "Stop at once: it goes on from its last checkpoint",
    is: (job) => canPause(job) && !WAITING.includes(job.state) },
  { what: "pause", id: "hold", name: "Hold", send: "Hold the job", back: "Leave it", done: "is held",
    words: "It is not placed on any device until it is resumed, and then takes its old place in the queue.",
    is: (job) => canPause(job) && WAITING.includes(job.state) },
  { what: "resume", name: "Resume", send: "Resume the job", back: "Leave it", done: "is resumed",
    words: "It waits for devices in its old place in the queue and goes on from its last checkpoint.",
    is: (job) => job.state === "PAUSED" || (job.pause_requested && !job.resume_requested && !job.cancel_requested) },
  { what: "cancel", name: "Cancel", send: "Cancel the job", back: "Leave it", isDanger: true, done: "will be cancelled",
    words: "It stops after the present step and writes a checkpoint. It cannot be started again from here; " +
      "a job with the same checkpoint directory goes on from it.",
    force: "Stop at once, without a checkpoint", is: () => true },
];

function formOf(change, id, dialog, onDone) {
  const token = el("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const force = el("input", { id: "force", type: "checkbox" });
  const problem = el("p", { class: "notice", role: "alert", hidden: true });
  const send = el("button", { type: "submit", class: change.isDanger ? "danger" : "send" }, change.send);
  const back = el("button", { type: "button", onclick: () => dialog.close() }, change.back);
  const form = el("form", { method: "dialog" },
    el("h2", { id: "change-title" }, `${change.name} ${id}?`), el("p", null, change.words),
    change.force ? el("p", null, el("label", null, force, ` ${change.force}`)) : null,
    el("p", null, el("label", null, "Operator token ", token)),
    problem, el("p", { class: "bar" }, send, back));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    problem.hidden = true;
    try {
      const job = await api.change(id, change.what, force.checked, token.value);
      sessionStorage.setItem(KEY, token.value);
      dialog.close();
      announce(`${id} ${change.done}.`);
      onDone(job);
    } catch (error) {
      if (error.status === 401 || error.status === 403) sessionStorage.removeItem(KEY);
      problem.hidden = false;
      setText(problem, error.message);
      token.focus();
      token.select();
    } finally {
      send.disabled = false;
    }
  });
  token.value = sessionStorage.getItem(KEY) || "";
  return { form, first: token.value ? back : token };
}

// {node, update(view)}: buttons, only where the coordinator knows operators, and those that the job's state allows.
export function changeButtons(id, onDone) {
  const dialog = el("dialog", { "aria-labelledby": "change-title" });
  let open = null;  // the change that the dialog asks about
  const buttons = CHANGES.map((change) => el("button", { type: "button", id: change.id || change.what, hidden: true, onclick: () => {
    const { form, first } = formOf(change, id, dialog, onDone);
    open = change;
    fill(dialog, form);
    dialog.showModal();
    first.focus();
  } }, `${change.name}...`));
  return {
    node: el("span", { class: "bar" }, buttons, dialog),
    update({ job, isOperator }) {
      CHANGES.forEach((change, i) => {
        buttons[i].hidden = !isOperator || hasEnded(job.state) || !change.is(job);
        if (buttons[i].hidden && dialog.open && open === change) dialog.close();
      });
    },
  };
}
