// A sorted, filtered table whose rows are kept up to date in place.

import { count, el, put } from "./dom.js";

const STEP = 100;

export class Table {
  /**
   * `columns`: title, `value` to sort by, `show(cell, row)` or text; `kind` is a class of the cells.
   * The first column sorts upwards first, the others downwards.
   */
  constructor(columns, { sort = 0, empty = "none" } = {}) {
    this.columns = columns;
    this.sort = sort;
    this.down = sort > 0;
    this.filter = "";
    this.limit = STEP;
    this.rows = [];
    this.shown = new Map();
    this.body = el("tbody");
    this.heads = columns.map((one, index) => el("th", { class: one.kind, scope: "col" },
      el("button", { type: "button", onclick: () => this.sortBy(index) }, one.title)));
    this.table = el("table", { class: "rows" }, el("thead", {}, el("tr", {}, this.heads)), this.body);
    this.more = el("div", { class: "more", hidden: true });
    this.none = el("div", { class: "empty", hidden: true }, empty);
    this.root = el("div", {}, el("div", { class: "scroll" }, this.table), this.none, this.more);
  }

  sortBy(index) {
    this.down = index === this.sort ? !this.down : index > 0;
    this.sort = index;
    this.draw();
  }

  setFilter(text) {
    this.filter = text.toLowerCase();
    this.limit = STEP;
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const value = this.columns[this.sort].value, sign = this.down ? -1 : 1;
    const found = this.rows.filter((row) => !this.filter || row.key.toLowerCase().includes(this.filter));
    const values = new Map(found.map((row) => [row, value(row)]));
    found.sort((one, other) => {
      const a = values.get(one), b = values.get(other);
      if (a === b) return one.key < other.key ? -1 : 1;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      return (a < b ? -1 : 1) * sign;
    });
    this.place(found.slice(0, this.limit));
    this.heads.forEach((head, index) => {
      if (index === this.sort) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.none.hidden = found.length > 0;
    this.table.hidden = found.length === 0;
    this.more.hidden = found.length <= this.limit;
    if (!this.more.hidden) {
      const next = el("button", { type: "button", class: "plain", onclick: () => { this.limit += STEP; this.draw(); } }, "Show more");
      const text = `${count(this.limit)} of ${count(found.length)} shown. `;
      if (this.more.shown !== text) { this.more.shown = text; this.more.replaceChildren(text, next); }
    }
  }

  place(rows) {
    const keep = new Set(rows.map((row) => row.key));
    for (const [key, line] of this.shown) if (!keep.has(key)) { line.remove(); this.shown.delete(key); }
    let place = this.body.firstChild;
    for (const row of rows) {
      let line = this.shown.get(row.key);
      if (!line) {
        line = el("tr", {}, this.columns.map((one) => el("td", { class: one.kind })));
        this.shown.set(row.key, line);
      }
      if (line === place) place = place.nextSibling;
      else this.body.insertBefore(line, place);
      this.columns.forEach((one, index) => {
        const text = one.show(row, line.cells[index]);
        if (typeof text === "string") put(line.cells[index], text);
      });
    }
  }
}

/** Show a link in a cell; `text` is only text. */
export function linkIn(cell, href, text) {
  let anchor = cell.firstChild;
  if (!anchor) { anchor = el("a"); cell.append(anchor); }
  if (anchor.getAttribute("href") !== href) anchor.setAttribute("href", href);
  put(anchor, text);
  if (cell.title !== text) cell.title = text;
}
