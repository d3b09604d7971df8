// The newest messages of a stream, and a search by offset, time and key.

import { card, count, el, size, time, visible } from "./dom.js";

const PAUSE = 2000;

/** Return nodes for a text, with the escapes of hidden characters marked. */
function marked(text) {
  const shown = visible(text, "\n\t"), parts = shown.split(/(\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\u\{[0-9a-f]+\})/);
  return shown === text ? [text] : parts.map((one, index) => (index % 2 ? el("span", { class: "hidden-char" }, one) : one));
}

/** Return bytes in hexadecimal and as text, 16 in a line. */
function hexadecimal(base64) {
  const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)), lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const text = part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(at.toString(16).padStart(4, "0") + "  " + hex + " " + text);
  }
  return lines.join("\n");
}

const shortText = (data) => ("text" in data ? visible(data.text) : "base64 " + data.base64) + ("text" in data && new TextEncoder().encode(data.text).length < data.size ? "…" : "");

/** Return JSON with line ends and indents, if a text is JSON. */
function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  if (text.length < 100) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function entry(message, payloads) {
  const tag = (name, text) => el("span", { class: "tag" }, el("b", {}, name), text);
  const line = el("div", { class: "line" }, el("span", { class: "offset" }, count(message.offset)), el("span", {}, time(message.time).slice(0, 23)),
    el("span", { class: "subject" }, visible(message.subject)), el("span", {}, size(message.size)));
  if (!payloads) return el("li", {}, line);
  const tags = [];
  if (message.key) tags.push(tag("key", shortText(message.key)));
  for (const [name, text] of Object.entries(message.envelope || {})) if (text) tags.push(tag(name, visible(text)));
  for (const [name, value] of message.headers) tags.push(tag(visible(name), shortText(value)));
  if (message.more_headers) tags.push(`and ${count(message.more_headers)} more headers`);
  const value = message.value, isText = "text" in value;
  const cut = (isText ? new TextEncoder().encode(value.text).length : atob(value.base64).length) < value.size;
  const body = value.size === 0 ? el("span", { class: "sub" }, "(empty)") : el("pre", { tabindex: 0, "aria-label": "Payload" }, isText ? marked(cut ? value.text : pretty(value.text)) : hexadecimal(value.base64));
  return el("li", {}, line, tags.length ? el("div", { class: "tags" }, tags) : null, message.fault ? el("div", { class: "cut" }, "malformed envelope: " + visible(message.fault)) : null,
    body, cut ? el("div", { class: "cut" }, `The start of ${size(value.size)} is shown.`) : null);
}

export class Messages {
  constructor(stream, about) {
    this.stream = stream;
    this.payloads = about.payloads;
    this.end = null;
    this.loading = false;
    this.loads = 0;
    this.loaded = 0;
    this.partitions = 0;
    this.partition = el("select", { "aria-label": "Partition" });
    this.chooser = el("label", { hidden: true }, "Partition", this.partition);
    this.start = el("input", { type: "text", placeholder: "newest", size: 20, spellcheck: "false", autocomplete: "off" });
    this.key = el("input", { type: "text", placeholder: "any", size: 14, spellcheck: "false", autocomplete: "off" });
    this.following = el("input", { type: "checkbox", checked: true });
    this.note = el("span", { class: "sub", role: "status" });
    this.list = el("ol", { class: "messages" });
    this.next = el("div", { class: "more", hidden: true });
    const form = el("form", { class: "search", onsubmit: (event) => { event.preventDefault(); this.search(); } },
      this.chooser, el("label", {}, "From offset or time (UTC)", this.start), el("label", {}, "Key", this.key),
      el("button", { type: "submit" }, "Search"), el("button", { type: "button", onclick: () => this.newest() }, "Newest"),
      el("label", { class: "check" }, this.following, "Follow"));
    this.partition.addEventListener("change", () => this.load());
    const box = card("Messages", form, this.list, this.next);
    box.sub.replaceWith(this.note);
    this.root = box.root;
  }

  close() { this.closed = true; }

  update(found) {
    if (found.partitions.length !== this.partitions) {
      this.partitions = found.partitions.length;
      this.partition.replaceChildren(...found.partitions.map((one) => el("option", { value: one.number }, String(one.number))));
      this.chooser.hidden = this.partitions < 2;
    }
    const isFollowing = this.following.checked && !this.start.value && !this.key.value;
    const isDue = this.end === null || (isFollowing && found.end !== this.end && Date.now() - this.loaded >= PAUSE);
    if (isDue && !this.loading) {
      this.end = found.end;
      this.load();
    }
  }

  newest() {
    this.start.value = this.key.value = "";
    this.following.checked = true;
    this.load();
  }

  search() {
    this.following.checked = false;
    this.load();
  }

  async load(start = this.start.value.trim()) {
    this.loading = true;
    const number = ++this.loads;
    const query = new URLSearchParams({ stream: this.stream, partition: this.partition.value || "0", start: start.replace(" ", "T") });
    if (this.key.value) query.set("key", this.key.value);
    try {
      const answer = await fetch("api/messages?" + query);
      const found = await answer.json();
      if (number !== this.loads || this.closed) return;  // a search has begun meanwhile
      this.show(found, start);
    } catch (error) {
      if (number !== this.loads) return;
      this.note.textContent = "The monitor can't be reached.";
    }
    this.loading = false;
    this.loaded = Date.now();
  }

  show(found, start) {
    if (found.error) { this.note.textContent = visible(found.error); return; }
    const messages = start ? found.messages : [...found.messages].reverse();
    this.list.replaceChildren(...messages.map((one) => entry(one, found.payloads)));
    const looked = this.key.value ? `, ${count(found.scanned)} looked at` : "";
    this.note.textContent = (messages.length ? (start ? `${count(messages.length)} from the start of the search` : `the newest ${count(messages.length)}`) : "none") + looked;
    const more = found.next !== null && Boolean(start || this.key.value);
    this.next.hidden = !more;
    if (more) this.next.replaceChildren(el("button", { type: "button", class: "plain", onclick: () => { this.following.checked = false; this.start.value = String(found.next); this.load(); } }, `Go on at offset ${count(found.next)}`));
  }
}
