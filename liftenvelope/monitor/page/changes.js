// Changes on the servers: buttons, a question before each, and the request. Only if the monitor allows them.

import { el, put, visible } from "./dom.js";

/** Show a dialog and return what `read` returns when it is accepted, or null. */
function ask(text, fields, accept, read, ready = () => true) {
  return new Promise((resolve) => {
    const go = el("button", { type: "submit", class: "danger" }, accept);
    const stop = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = el("form", { method: "dialog" }, el("p", {}, text), fields, el("div", { class: "choices" }, stop, go));
    const dialog = el("dialog", { class: "card", "aria-label": accept }, form);
    let result = null;
    const look = () => { go.disabled = !ready(); };
    form.addEventListener("input", look);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!ready()) return;
      result = read();
      dialog.close();
    });
    dialog.addEventListener("close", () => { dialog.remove(); resolve(result); });
    document.body.append(dialog);
    look();
    dialog.showModal();
  });
}

/** Ask yes or no. */
export const sure = (text, accept) => ask(text, [], accept, () => ({}));

/** Ask for a time to pause. */
export function howLong(text, accept) {
  const TIMES = [[60, "1 minute"], [600, "10 minutes"], [3600, "1 hour"], [86400, "1 day"], [2592000, "30 days"]];
  const choice = el("select", { "aria-label": "Time" }, TIMES.map(([seconds, name]) => el("option", { value: seconds, selected: seconds === 600 }, name)));
  return ask(text, [choice], accept, () => ({ seconds: Number(choice.value) }));
}

/** Ask for a name, so that nothing is lost by one click. */
export function spelled(text, name, accept) {
  const field = el("input", { type: "text", "aria-label": "Name", autocomplete: "off", spellcheck: "false" });
  return ask(text, [field], accept, () => ({ confirm: name }), () => field.value === name);
}

/** A row of buttons, and the outcome of the last change. Empty if changes are not allowed. */
export class ChangeBar {
  constructor(about) {
    this.key = about.key || "";
    this.buttons = el("span", { class: "changes" });
    this.outcome = el("span", { class: "sub", role: "status" });
    this.root = el("div", { class: "changing", hidden: !this.key }, this.buttons, this.outcome);
    this.shown = null;
  }

  /** Show buttons: each with a name, an action, the names of what it changes, and a question. */
  update(changes) {
    const shown = JSON.stringify(changes.map((one) => [one.name, one.change]));
    if (!this.key || shown === this.shown) return;
    this.shown = shown;
    this.buttons.replaceChildren(...changes.map((one) => el("button", { type: "button", onclick: () => this.make(one) }, one.name)));
  }

  async make({ change, question }) {
    const answer = await question();
    if (answer === null) return;
    put(this.outcome, "…");
    try {
      const sent = await fetch("api/changes", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Liftenvelope-Key": this.key },
        body: JSON.stringify({ ...change, ...answer }),
      });
      const found = await sent.json();
      put(this.outcome, visible(found.done || found.error));
      this.outcome.classList.toggle("bad", !sent.ok);
    } catch {
      put(this.outcome, "The outcome is not known: the monitor did not answer.");
      this.outcome.classList.add("bad");
    }
  }
}

/** The changes of a stream. */
export function ofStream(kind, stream, partitions) {
  const name = visible(stream);
  if (kind === "jetstream") {
    const text = `Delete all messages of ${name}? They can't be brought back. Type the name of the stream:`;
    return [{ name: "Purge", change: { action: "purge stream", stream }, question: () => spelled(text, stream, "Purge") }];
  }
  const found = [];
  const add = (title, action, text) => found.push({ name: title, change: { action, stream }, question: () => sure(text, title) });
  if (partitions.some((one) => !one.paused)) add("Pause", "pause stream", `Pause all partitions of ${name}? Messages that are published on NATS meanwhile are not recorded.`);
  if (partitions.some((one) => one.paused)) add("Resume", "resume stream", `Wake the paused partitions of ${name}?`);
  if (partitions.some((one) => !one.readonly)) add("Make read-only", "make read-only", `Refuse all further messages of ${name}?`);
  if (partitions.some((one) => one.readonly)) add("Make writable", "make writable", `Let ${name} take messages again?`);
  return found;
}

/** The changes of a consumer. */
export function ofConsumer(stream, consumer, found) {
  const name = visible(consumer), place = { stream, consumer };
  const changes = [found.paused
    ? { name: "Resume", change: { action: "resume consumer", ...place }, question: () => sure(`End the pause of ${name}?`, "Resume") }
    : { name: "Pause", change: { action: "pause consumer", ...place }, question: () => howLong(`Deliver no messages to ${name} for`, "Pause") }];
  for (const [group, client] of found.pins) {
    if (client) changes.push({ name: "Unpin " + visible(group), change: { action: "unpin consumer", ...place, group }, question: () => sure(`Unpin the client of ${visible(group)}, so that the server pins another one?`, "Unpin") });
  }
  return changes;
}
