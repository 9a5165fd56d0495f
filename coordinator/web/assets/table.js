// Tables that stay tables on a phone, where CSS shows each row as a card, and whose rows are changed in place.
// SPDX-License-Identifier: Apache-2.0
import { el, fill, setText } from "./dom.js";

// columns: [{name, numeric, header}]; the column with `header` names its row. Roles are written out, as browsers
// forget them where CSS changes how a table is laid out.
export function table(caption, columns, { captionUnseen = true, cards = true } = {}) {
  const body = el("tbody", { role: "rowgroup" });
  const head = el("tr", { role: "row" }, columns.map((column) =>
    el("th", { scope: "col", role: "columnheader", class: column.numeric ? "number" : null }, column.name)));
  const node = el("table", { role: "table", class: cards ? "cards" : null },
    el("caption", { class: captionUnseen ? "unseen" : null }, caption),
    el("thead", { role: "rowgroup" }, head), body);
  return { node: el("div", { class: "wide" }, node), body, columns };
}

function makeRow(columns) {
  return el("tr", { role: "row" }, columns.map((column) => {
    const attributes = { class: column.numeric ? "number" : null, "data-label": column.name };
    return column.header ? el("th", { scope: "row", role: "rowheader", ...attributes }) :
      el("td", { role: "cell", ...attributes });
  }));
}

// A text, a node, or [text, smaller text under it].
function setCell(cell, value) {
  if (Array.isArray(value)) {
    if (!cell.lines) {
      cell.lines = [el("span"), el("small", { class: "under" })];
      fill(cell, el("span", null, cell.lines));
    }
    value.forEach((text, index) => setText(cell.lines[index], text));
  } else if (value instanceof Node) {
    if (cell.firstChild !== value) fill(cell, value);
  } else {
    setText(cell, value);
  }
}

// Shows `items` in their order; `key(item)` tells a row that is there already, `cells(item, row)` returns for each
// column a text, a pair of texts or a node. A node that a row got before may be given again.
export function setRows(shown, items, key, cells) {
  const before = new Map([...shown.body.children].map((row) => [row.key, row]));
  let place = shown.body.firstChild;
  for (const item of items) {
    const name = key(item);
    let row = before.get(name);
    before.delete(name);
    if (!row) {
      row = makeRow(shown.columns);
      row.key = name;
    }
    cells(item, row).forEach((value, index) => setCell(row.children[index], value));
    if (row === place) place = row.nextSibling;
    else shown.body.insertBefore(row, place);
  }
  before.forEach((row) => row.remove());
}

// A table that does not change: rows of texts or nodes.
export function plainTable(caption, columns, rows, options) {
  const shown = table(caption, columns, options);
  setRows(shown, rows.map((cells, index) => ({ cells, index })), (row) => row.index, (row) => row.cells);
  return shown.node;
}
