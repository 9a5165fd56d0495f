// Starts the page: shows what the address names, and ends what was shown before.
// SPDX-License-Identifier: Apache-2.0
import { el, fill } from "./dom.js";
import { parse } from "./router.js";

// A page is show(main, route, onEnd): it fills `main` with a heading first and gives to onEnd what ends its polls.
const PAGES = { jobs: "./jobs.js", job: "./job.js", queue: "./queue.js", nodes: "./nodes.js", compare: "./compare.js" };
const main = document.getElementById("main");
let endings = [];
let shown = "";

function pageOf(parts) {
  if (parts.length === 0) return "jobs";
  if (parts[0] === "jobs" && parts.length > 1) return "job";
  return parts[0];
}

function markNavigation(first) {
  for (const anchor of document.querySelectorAll("#pages a")) {
    if (anchor.getAttribute("href") === `#/${first}`) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
}

function goTo(sectionId) {
  const title = document.getElementById(`${sectionId}-title`);
  title?.scrollIntoView();
  title?.focus({ preventScroll: true });
}

async function show(isFirst) {
  const route = parse(location.hash);
  const page = pageOf(route.parts);
  // The third part of a job's address is a section of the same page.
  const key = JSON.stringify(page === "job" ? route.parts.slice(0, 2) : [route.parts, route.query]);
  if (key === shown) {
    if (page === "job" && route.parts[2]) goTo(route.parts[2]);
    return;
  }
  shown = key;
  endings.forEach((end) => end());
  const mine = [];
  endings = mine;
  markNavigation(route.parts[0] || "jobs");
  const module = Object.hasOwn(PAGES, page) ? await import(PAGES[page]).catch(() => null) : null;
  if (endings !== mine) return;  // somebody went on meanwhile
  fill(main);
  if (module) {
    module.show(main, route, (end) => mine.push(end));
  } else if (Object.hasOwn(PAGES, page)) {
    shown = "";
    fill(main, el("h1", { tabindex: "-1" }, "This page could not be loaded"),
      el("p", { class: "notice" }, "The coordinator did not send a part of it. Load the page again."));
  } else {
    fill(main, el("h1", { tabindex: "-1" }, "There is no such page"),
      el("p", null, "Go to ", el("a", { href: "#/jobs" }, "the list of jobs"), "."));
  }
  const heading = main.querySelector("h1");
  document.title = `${heading.textContent} - Terrace`;
  if (!isFirst) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
  if (page === "job" && route.parts[2]) goTo(route.parts[2]);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address behind '#' names pages
  main.focus();
});
addEventListener("hashchange", () => show(false));
show(true);
