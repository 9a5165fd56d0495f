// Talks to the coordinator. An answer with an error is an ApiError for the page that asked; no answer at all is
// also told at the top of the page, until there is one again.
// SPDX-License-Identifier: Apache-2.0
import { setText } from "./dom.js";
import { moment } from "./format.js";

const TIMEOUT_MS = 15_000;
let silentSince = 0;

export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;  // of HTTP; 0: no answer
  }
}

function tellConnection(answered) {
  const line = document.getElementById("connection");
  if (answered) {
    if (silentSince) setText(line, "");
    silentSince = 0;
  } else {
    silentSince = silentSince || Date.now();
    setText(line, `The coordinator has not answered since ${moment(silentSince)}. What you see is from before. ` +
      "This page keeps trying.");
  }
}

// The error of an answer. What is no JSON does not come from the coordinator: 502 and the like are those of a
// proxy that does not reach it.
async function errorOf(response) {
  try {
    const said = (await response.json()).error;
    if (typeof said === "string" && said) return new ApiError(response.status, said);
  } catch {
    if (response.status >= 500) return new ApiError(0, "The coordinator does not answer.");
  }
  return new ApiError(response.status, `The coordinator answered with HTTP ${response.status}.`);
}

// JSON of a path below /api/v1; `signal` gives it up, `timeoutMs` is for long polls.
export async function ask(path, { method = "GET", headers = {}, signal, timeoutMs = TIMEOUT_MS } = {}) {
  const control = new AbortController();
  const giveUp = () => control.abort();
  const timer = setTimeout(giveUp, timeoutMs);
  if (signal?.aborted) giveUp();
  signal?.addEventListener("abort", giveUp);
  try {
    const response = await fetch(`/api/v1/${path}`, { method, headers, signal: control.signal, cache: "no-store" });
    if (!response.ok) {
      const error = await errorOf(response);
      if (error.status > 0) tellConnection(true);
      throw error;
    }
    const answer = await response.json();
    tellConnection(true);
    return answer;
  } catch (error) {
    if (error instanceof ApiError && error.status !== 0) throw error;
    if (!signal?.aborted) tellConnection(false);
    throw error instanceof ApiError ? error : new ApiError(0, "The coordinator does not answer.");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", giveUp);
  }
}

const of = (id, what = "") => `jobs/${encodeURIComponent(id)}${what}`;
export const jobPath = of;

export const jobs = (filter, signal) => ask(`jobs?${new URLSearchParams(filter)}`, { signal });
export const job = (id, signal) => ask(of(id), { signal });
export const history = (id, signal) => ask(of(id, "/history"), { signal });
export const memory = (id, signal) => ask(of(id, "/memory"), { signal });
export const nodes = (signal) => ask("nodes", { signal });
export const logs = (id, where, signal) => ask(of(id, `/logs?${new URLSearchParams(where)}`), { signal });
export const events = (id, after, wait, signal) =>
  ask(of(id, `/events?after=${after}&wait=${wait}`), { signal, timeoutMs: wait * 1000 + TIMEOUT_MS });
export const planUrl = (id) => `/api/v1/${of(id, "/plan")}`;
// `what` is cancel, pause or resume.
export const change = (id, what, force, token) =>
  ask(of(id, `/${what}${force ? "?force=1" : ""}`), { method: "POST", headers: { Authorization: `Bearer ${token}` } });
