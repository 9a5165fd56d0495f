// Where the job's time went, its restarts, and the changes of the layout that the service made.
// SPDX-License-Identifier: Apache-2.0
import { el, fillFor, section } from "./dom.js";
import { count, moment, number, percent, seconds } from "./format.js";
import { plainTable } from "./table.js";
import { reasonWord } from "./words.js";

function spentTable(job) {
  const spent = (job.spent || []).filter((part) => number(part.seconds));
  if (!spent.length) return null;
  const whole = spent.reduce((sum, part) => sum + number(part.seconds), 0);
  const rows = spent.map((part) => [part.cause, seconds(part.seconds), percent(part.seconds, whole)]);
  return plainTable("Where the time went", [{ name: "cause", header: true }, { name: "time", numeric: true },
    { name: "part", numeric: true }], [...rows, ["in all", seconds(whole), percent(whole, whole)]],
  { captionUnseen: false });
}

function restartsTable(job) {
  const rows = (job.last_restarts || []).map((restart) => [moment(restart.unix_ms),
    number(restart.step) ? `step ${count(restart.step)}` : "the beginning", reasonWord(restart.reason) || "-",
    restart.message || "-", seconds(restart.detection_seconds || 0),
    number(restart.recovery_seconds) ? seconds(restart.recovery_seconds) : "not there yet"]).reverse();
  return plainTable("Restarts, the newest first", [{ name: "when", header: true }, { name: "went on from" },
    { name: "reason" }, { name: "what happened" }, { name: "noticed after", numeric: true },
    { name: "recovered after", numeric: true }], rows, { captionUnseen: false });
}

function adjustmentsTable(job) {
  if (!job.adjustments?.length) return null;
  const rows = job.adjustments.map((change) => [moment(change.unix_ms), `step ${count(change.step || 0)}`,
    change.cause || "-", change.change || "-"]);
  return plainTable("Changes of the layout", [{ name: "when", header: true }, { name: "since" }, { name: "cause" },
    { name: "change" }], rows, { captionUnseen: false });
}

export function restartsSection(view, id, name) {
  const place = el("div");
  return {
    node: section(`${name} and lost time`, id, place),
    update({ job }) {
      const restarts = number(job.restarts) || 0;
      const told = [job.restarts, job.spent, job.last_restarts, job.adjustments];
      fillFor(place, told, () => [spentTable(job), el("p", null, restarts === 0 ? "The job was never restarted." :
        `The job was restarted ${count(restarts)} ${restarts === 1 ? "time" : "times"}, ` +
        `${count(job.restarts_without_progress || 0)} of them without progress since.`),
      job.last_restarts?.length ? restartsTable(job) : null, adjustmentsTable(job)]);
    },
  };
}
