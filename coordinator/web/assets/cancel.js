// Cancels a job: asks for confirmation and the operator's token, which this tab alone keeps until it is closed.
// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js";
import { announce, el, setText } from "./dom.js";
import { hasEnded } from "./words.js";

const KEY = "terrace-operator-token";

function dialogOf(id, onDone) {
  const token = el("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const force = el("input", { id: "force", type: "checkbox" });
  const problem = el("p", { class: "notice", role: "alert", hidden: true });
  const send = el("button", { type: "submit", class: "danger" }, "Cancel the job");
  const back = el("button", { type: "button", onclick: () => dialog.close() }, "Let it run");
  const form = el("form", { method: "dialog" },
    el("h2", { id: "cancel-title" }, `Cancel ${id}?`),
    el("p", null, "It stops after the present step and writes a checkpoint. It cannot be started again from here; " +
      "a job with the same checkpoint directory goes on from it."),
    el("p", null, el("label", null, force, " Stop at once, without a checkpoint")),
    el("p", null, el("label", null, "Operator token ", token)),
    problem, el("p", { class: "bar" }, send, back));
  const dialog = el("dialog", { "aria-labelledby": "cancel-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    problem.hidden = true;
    try {
      const job = await api.cancel(id, force.checked, token.value);
      sessionStorage.setItem(KEY, token.value);
      dialog.close();
      announce(`${id} will be cancelled.`);
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
  return { dialog, open() {
    token.value = sessionStorage.getItem(KEY) || "";
    force.checked = false;
    problem.hidden = true;
    dialog.showModal();
    (token.value ? back : token).focus();
  } };
}

// {node, update(view)}: a button, only where the coordinator knows operators and the job has not ended.
export function cancelButton(id, onDone) {
  const { dialog, open } = dialogOf(id, onDone);
  const button = el("button", { type: "button", id: "cancel", hidden: true, onclick: open }, "Cancel...");
  return {
    node: el("span", null, button, dialog),
    update({ job, isOperator }) {
      button.hidden = !isOperator || hasEnded(job.state);
      if (button.hidden && dialog.open) dialog.close();
    },
  };
}
