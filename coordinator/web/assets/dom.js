// Makes elements. Text from outside (names, messages, logs, specs) becomes text nodes and nothing else,
// with control characters and changes of writing direction made visible: see visible().
// SPDX-License-Identifier: Apache-2.0

// Control characters, and those that reorder what stands around them.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

export function visible(text) {
  return String(text).replace(UNSEEN,
    (character) => `<U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

// el("a", {class: "x", href: "#/jobs", onclick: f}, "text", node, null): attributes that are false or null are
// left out, functions are listeners.
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : visible(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child instanceof Node ? child : visible(child));
  }
}

export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

// Fills only when what `key` tells has changed.
export function fillFor(node, key, make) {
  const told = JSON.stringify(key);
  if (node.filledFor === told) return;
  node.filledFor = told;
  fill(node, make());
}

// Writes only what changed, so that a selection and a screen reader's place survive.
export function setText(node, text) {
  const shown = visible(text);
  if (node.textContent !== shown) node.textContent = shown;
  return node;
}

export function section(title, id, ...children) {
  const heading = el("h2", { id: `${id}-title`, tabindex: "-1" }, title);
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, ...children);
}

// A list of names with values: [["loss", "2.31"], ...]; a value may be a node.
export function pairs(entries, className) {
  return el("dl", { class: className || "pairs" },
    entries.filter((entry) => entry && entry[1] !== null && entry[1] !== undefined && entry[1] !== "")
      .map(([name, value, note]) => el("div", null, el("dt", null, name),
        el("dd", null, value, note ? el("small", null, note) : null))));
}

// Told to screen readers, once, when they have finished their sentence.
export function announce(sentence) {
  setText(document.getElementById("announcements"), sentence);
}
