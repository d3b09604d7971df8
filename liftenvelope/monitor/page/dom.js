// Elements and formats. Text of servers and publishers gets into the page by text nodes alone.

// Characters without a glyph: control, format (such as bidirectional overrides), surrogates, private use, separators.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;

/** Return a text with an escape in place of each character that would not be seen. Keeps what is in `keep`. */
export function visible(text, keep = "") {
  return String(text).replace(HIDDEN, (one) => {
    if (keep.includes(one)) return one;
    const code = one.codePointAt(0);
    if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
    return code < 0x10000 ? "\\u" + code.toString(16).padStart(4, "0") : "\\u{" + code.toString(16) + "}";
  });
}

const SVG = "http://www.w3.org/2000/svg";

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

/** Create an element. Attributes that begin with `on` are listeners; strings among the children become text nodes. */
export const el = (tag, properties = {}, ...children) => build(document.createElement(tag), properties, children);
export const svg = (tag, properties = {}, ...children) => build(document.createElementNS(SVG, tag), properties, children);

/** Set the text of a node, if it differs. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = ["", " k", " M", " G", " T", " P"];

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** Return a number and its noun: "1 group", "2 groups". */
export const many = (value, noun) => count(value) + " " + noun + (value === 1 ? "" : "s");

/** Format a number with three digits and a unit: 1,234,567 becomes 1.23 M. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 10000) return whole.format(value);
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < UNITS.length - 1) { value /= 1000; step += 1; }
  return Number(value.toPrecision(3)) + UNITS[step];
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : short(value);
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function size(value) {
  if (value === null || value === undefined) return "–";
  let step = 0;
  while (value >= 1024 && step < SIZES.length - 1) { value /= 1024; step += 1; }
  return (step === 0 ? value : value.toFixed(value < 10 ? 1 : 0)) + " " + SIZES[step];
}

export function age(at, now) {
  if (at === null || at === undefined) return "–";
  const seconds = Math.max(now - at, 0);
  if (seconds < 3) return "now";
  if (seconds < 90) return Math.round(seconds) + " s ago";
  if (seconds < 5400) return Math.round(seconds / 60) + " min ago";
  if (seconds < 129600) return Math.round(seconds / 3600) + " h ago";
  return Math.round(seconds / 86400) + " d ago";
}

export function time(at) {
  const moment = new Date(at * 1000);
  return Number.isNaN(moment.getTime()) ? String(at) : moment.toISOString().replace("T", " ").replace("Z", "");
}

/** Return the link to a page of the monitor. */
export const link = (page, ...names) => "#/" + [page, ...names.map(encodeURIComponent)].join("/");

/** Return a card with a title, and its parts. */
export function card(title, ...children) {
  const sub = el("span", { class: "sub" }), right = el("div", { class: "right" });
  const head = el("header", {}, el("h2", {}, title), sub, right);
  return { root: el("section", { class: "card" }, head, ...children), sub, right };
}

/** Return a tile with a name and a value. */
export function tile(name) {
  const value = el("div", { class: "value" }), note = el("div", { class: "note" });
  const root = el("div", { class: "card tile" }, el("div", { class: "name" }, name), value, note);
  return {
    root,
    set(text, unit = "", more = "") {
      const shown = text + "\u0000" + unit;
      if (root.shown !== shown) {
        root.shown = shown;
        value.replaceChildren(text, unit ? el("span", { class: "unit" }, unit) : "");
      }
      put(note, more);
    },
  };
}
