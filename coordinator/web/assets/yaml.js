// Reads the YAML that specs are made of: mappings and lists by indentation or in brackets, quoted and plain text,
// comments. The coordinator has accepted the text before; what this does not know (anchors, tags, several
// documents) it takes as plain text. Scalars stay text as they were written. Pure.
// SPDX-License-Identifier: Apache-2.0

// Cuts a comment off: '#' at the beginning or after white space, outside quotes.
function withoutComment(line) {
  let quote = "";
  for (let i = 0; i < line.length; i += 1) {
    const character = line[i];
    if (quote) quote = character === quote ? "" : quote;
    else if (character === '"' || character === "'") quote = character;
    else if (character === "#" && (i === 0 || /\s/.test(line[i - 1]))) return line.slice(0, i);
  }
  return line;
}

const unquoted = (text) => text.trim().replace(/^(["'])([^]*)\1$/, "$2");

const MAX_DEPTH = 64;  // no spec nests deeper; what does is text

// One value of what stands in brackets, from `at.i` on, which is moved behind it.
function flow(text, at, depth = 0) {
  const skip = () => { while (/\s/.test(text[at.i] || "")) at.i += 1; };
  skip();
  const open = text[at.i];
  if ((open === "{" || open === "[") && depth < MAX_DEPTH) {
    const result = open === "{" ? {} : [];
    at.i += 1;
    for (;;) {
      skip();
      if (at.i >= text.length) return result;
      if (text[at.i] === "}" || text[at.i] === "]") {
        at.i += 1;
        return result;
      }
      const first = flow(text, at, depth + 1);
      skip();
      if (open === "[") {
        result.push(first);
      } else if (text[at.i] === ":") {
        at.i += 1;
        result[String(first)] = flow(text, at, depth + 1);
      } else {
        result[String(first)] = "";
      }
      skip();
      if (text[at.i] === ",") at.i += 1;
    }
  }
  const from = at.i;
  if (open === '"' || open === "'") {
    at.i = text.indexOf(open, from + 1) + 1 || text.length;
  } else {
    // A colon ends a key only before white space: 0:2 and C:\ are text.
    while (at.i < text.length && !/[,\]}]/.test(text[at.i]) && !(text[at.i] === ":" && /\s|$/.test(text[at.i + 1] || ""))) {
      at.i += 1;
    }
    if (at.i === from) at.i += 1;
  }
  return unquoted(text.slice(from, at.i));
}

const KEY = /^("[^"]*"|'[^']*'|[^\s:#[{][^:]*?(?::\S[^:]*?)*)\s*:(?:\s+(.*))?$/;
const isOpen = (text) => {
  const bare = text.replace(/"[^"]*"|'[^']*'/g, "");
  return (bare.match(/[[{]/g) || []).length > (bare.match(/[\]}]/g) || []).length;
};

export function parseYaml(text) {
  const lines = text.split("\n").map(withoutComment).map((line) => line.trimEnd())
    .filter((line) => line.trim() && !/^(---|%|\.\.\.)/.test(line))
    .map((line) => ({ indent: line.search(/\S/), text: line.trim() }));
  let i = 0;
  let depth = 0;

  // What stands behind a key or a dash, and on the lines below that are deeper than `indent`.
  function value(rest, indent) {
    if (/^[|>][-+\d]*$/.test(rest)) {
      const parts = [];
      while (i < lines.length && lines[i].indent > indent) parts.push(lines[i++].text);
      return parts.join(rest[0] === "|" ? "\n" : " ");
    }
    if (rest) {
      let whole = rest;
      while (/^[[{]/.test(whole) && isOpen(whole) && i < lines.length) whole += ` ${lines[i++].text}`;
      return /^[[{]/.test(whole) ? flow(whole, { i: 0 }) : unquoted(whole);
    }
    const next = lines[i];
    if (!next) return "";
    const isList = /^-(\s|$)/.test(next.text);
    if (depth >= MAX_DEPTH || !(next.indent > indent || (isList && next.indent === indent))) return "";
    depth += 1;
    const inner = block(next.indent);
    depth -= 1;
    return inner;
  }

  function block(indent) {
    if (/^-(\s|$)/.test(lines[i].text)) {
      const items = [];
      while (i < lines.length && lines[i].indent === indent && /^-(\s|$)/.test(lines[i].text)) {
        items.push(value(lines[i++].text.slice(1).trim(), indent));
      }
      return items;
    }
    const result = {};
    while (i < lines.length && lines[i].indent >= indent) {
      const match = lines[i].text.match(KEY);
      i += 1;
      if (match) result[unquoted(match[1])] = value(match[2] || "", lines[i - 1].indent);
    }
    return result;
  }

  if (!lines.length) return {};
  if (/^[[{]/.test(lines[0].text)) return value(lines[i++].text, 0);
  return block(lines[0].indent);
}
