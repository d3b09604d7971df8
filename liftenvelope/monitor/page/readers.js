// Consumers and groups: the lists, one consumer, and one group with its assignment.

import { ChangeBar, ofConsumer } from "./changes.js";
import { card, count, el, link, put, short, svg, tile, time, visible } from "./dom.js";
import { Plot } from "./plot.js";
import { Alerts, Facts } from "./streams.js";
import { linkIn, Table } from "./table.js";

const COLOURS = 8;
const DRAWN = 48;

/** Columns of a table of consumers, with the stream of each if there are several streams. */
export function consumerColumns(withStream) {
  const columns = [
    { title: "Consumer", kind: "name", value: (row) => row.name, show: (row, cell) => linkIn(cell, link("consumer", row.stream, row.name), visible(row.name)) },
    { title: "Lag", value: (row) => row.lag, show: (row) => count(row.lag) },
    { title: "Not delivered", kind: "wide", value: (row) => row.unprocessed, show: (row) => count(row.unprocessed) },
    { title: "Ack pending", kind: "wide", value: (row) => row.ack_pending, show: (row) => count(row.ack_pending) },
    { title: "Redelivered", kind: "wide", value: (row) => row.redelivered, show: (row, cell) => {
      cell.classList.toggle("warn", row.redelivered > 0);
      return count(row.redelivered);
    } },
    { title: "Pulls", kind: "wide", value: (row) => row.waiting, show: (row) => count(row.waiting) },
    { title: "State", value: (row) => row.paused, show: (row) => row.kind + (row.paused ? ", paused" : row.pins.some((pin) => pin[1]) ? ", pinned" : "") },
  ];
  if (withStream) columns.splice(1, 0, { title: "Stream", kind: "name wide", value: (row) => row.stream, show: (row, cell) => linkIn(cell, link("stream", row.stream), visible(row.stream)) });
  return columns;
}

export class ReadersPage {
  constructor() {
    this.alerts = new Alerts(([, kind]) => kind === "consumer" || kind === "group" || kind === "sample");
    this.groups = new Table([
      { title: "Group", kind: "name", value: (row) => row.key, show: (row, cell) => linkIn(cell, link("group", row.key), visible(row.key)) },
      { title: "Lag", value: (row) => row.lag, show: (row) => count(row.lag) },
      { title: "Members", value: (row) => row.members, show: (row, cell) => {
        cell.classList.toggle("warn", row.members === 0);
        return count(row.members);
      } },
      { title: "Partitions", kind: "wide", value: (row) => row.partitions, show: (row) => count(row.partitions) },
      { title: "State", value: (row) => row.state, show: (row) => row.state },
    ], { sort: 1, empty: "No groups." });
    this.consumers = new Table(consumerColumns(true), { sort: 2, empty: "No consumers." });
    const groups = card("Groups", this.groups.root);
    this.consumerCard = card("Consumers", this.consumers.root);
    groups.right.append(el("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter consumers and groups",
      oninput: (event) => { this.groups.setFilter(event.target.value); this.consumers.setFilter(event.target.value); } }));
    this.root = el("div", { class: "page" });
    this.root.append(el("h1", {}, "Consumers & groups"), this.alerts.root, groups.root, this.consumerCard.root);
  }

  reset() {}

  close() {}

  update(state) {
    this.alerts.update(state);
    this.consumerCard.root.hidden = state.head.kind !== "jetstream";
    this.groups.update(state.groups.map(([key, phase, members, partitions, lag]) => ({ key, state: phase, members, partitions, lag })));
    this.consumers.update(state.consumers.map((one) => ({ ...one, key: one.stream + "/" + one.name })));
  }
}

export class ConsumerPage {
  constructor([stream, name], about) {
    this.stream = stream;
    this.consumer = name;
    this.name = stream + "/" + name;
    this.changes = new ChangeBar(about);
    this.sub = el("span", { class: "sub" });
    this.tiles = { lag: tile("Lag"), unprocessed: tile("Not delivered"), pending: tile("Ack pending"), redelivered: tile("Redelivered"), waiting: tile("Waiting pulls") };
    this.alerts = new Alerts(([, kind, about]) => kind === "consumer" && about === this.name);
    this.plot = new Plot({ names: () => "lag", fill: true });
    this.facts = new Facts("Kind", "Last delivered", "Ack floor", "State");
    this.pins = new Table([
      { title: "Priority group", kind: "name", value: (row) => row.key, show: (row) => visible(row.key) },
      { title: "Pinned client", kind: "left", value: (row) => row.client, show: (row) => (row.client ? visible(row.client) : "none") },
      { title: "Since", kind: "left", value: (row) => row.since, show: (row) => (row.since ? time(row.since).slice(0, 19) : "–") },
    ]);
    this.pinCard = card("Priority groups", this.pins.root);
    this.pinCard.root.hidden = true;
    this.root = el("div", { class: "page" });
    const title = el("div", { class: "title" }, el("h1", {}, visible(name)), el("span", { class: "sub" }, "consumer of ", el("a", { href: link("stream", stream) }, visible(stream))), this.sub);
    this.root.append(title, this.changes.root, el("div", { class: "tiles" }, Object.values(this.tiles).map((one) => one.root)), this.alerts.root,
      card("Lag", this.plot.root).root, card("Position", this.facts.root).root, this.pinCard.root);
  }

  reset() { this.plot.lines.clear(); }

  close() { this.plot.close(); }

  update(state) {
    this.alerts.update(state);
    if (state.gone) { put(this.sub, "There is no such consumer."); return; }
    put(this.sub, "");
    const found = state.consumer;
    this.tiles.lag.set(short(found.lag));
    this.tiles.unprocessed.set(short(found.unprocessed));
    this.tiles.pending.set(short(found.ack_pending));
    this.tiles.redelivered.set(short(found.redelivered));
    this.tiles.waiting.set(short(found.waiting));
    this.facts.set(found.kind, "sequence " + count(found.delivered), "sequence " + count(found.ack_floor), found.paused ? "paused" : "active");
    this.changes.update(ofConsumer(this.stream, this.consumer, found));
    this.plot.update(state.series);
    this.pinCard.root.hidden = found.pins.length === 0;
    this.pins.update(found.pins.map(([key, client, since]) => ({ key, client, since })));
  }
}

/** Draws members, their partitions, and the lag of each. */
class Assignment {
  constructor() {
    this.root = el("div", { class: "drawing" });
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this.root);
    this.group = null;
    this.shown = null;
  }

  close() { this.resizing.disconnect(); }

  update(group) {
    this.group = group;
    this.draw();
  }

  draw() {
    const width = this.root.clientWidth - 32;
    if (!this.group || width < 100) return;
    const shown = JSON.stringify([width, this.group.members, this.group.partitions]);
    if (shown === this.shown) return;
    this.shown = shown;
    const rows = this.group.partitions.slice(0, DRAWN), members = this.group.members.map(([name]) => name);
    const line = 30, height = Math.max(rows.length, members.length) * line + 4;
    const left = Math.min(Math.max(width * 0.34, 96), 300), right = Math.max(width * 0.5, left + 26);
    const place = (index, all) => (height / Math.max(all, 1)) * (index + 0.5);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Assignment of partitions to members" });
    const clip = (text, room) => (text.length * 7.2 > room ? text.slice(0, Math.max(Math.floor(room / 7.2) - 1, 1)) + "…" : text);
    const isOne = rows.every((row) => row[0] === rows[0][0]);
    const most = Math.max(...rows.map((row) => row[5] ?? 0), 1);
    rows.forEach(([topic, number, member, , , lag], index) => {
      const y = place(index, rows.length), owner = members.indexOf(member), tint = owner % COLOURS;
      if (owner >= 0) {
        const from = place(owner, members.length), middle = (left + right) / 2;
        picture.append(svg("path", { d: `M${left} ${from}C${middle} ${from} ${middle} ${y} ${right} ${y}`, class: "s" + tint }));
      }
      const label = clip(isOne ? "partition " + number : visible(topic) + " / " + number, (width - right) * 0.5);
      const bar = right + (width - right) * 0.56, room = width - bar - 4;
      picture.append(svg("circle", { cx: right, cy: y, r: 4, class: owner >= 0 ? "f" + tint : "soft" }),
        svg("text", { x: right + 11, y: y + 4.5 }, svg("title", {}, visible(topic)), label),
        svg("rect", { class: "track", x: bar, y: y - 8, width: room, height: 16, rx: 4 }),
        svg("rect", { class: "f" + (owner >= 0 ? tint : 0), opacity: 0.55, x: bar, y: y - 8, width: (room * (lag ?? 0)) / most, height: 16, rx: 4 }),
        svg("text", { class: "soft", x: bar + 6, y: y + 4 }, lag === null ? "–" : "lag " + short(lag)));
    });
    members.forEach((name, index) => {
      const y = place(index, members.length);
      picture.append(svg("rect", { class: "box member s" + (index % COLOURS), x: 1, y: y - 13, width: left - 2, height: 26, rx: 8 }),
        svg("text", { x: 12, y: y + 4.5 }, svg("title", {}, visible(name)), clip(visible(name), left - 22)));
    });
    const notes = [];
    if (members.length === 0) notes.push(el("p", { class: "calm" }, "The group has no members."));
    else if (rows.every((row) => row[2] === null)) notes.push(el("p", { class: "sub" }, "The servers do not tell which member reads which partition."));
    if (this.group.partitions.length > DRAWN) notes.push(el("p", { class: "sub" }, `${count(this.group.partitions.length - DRAWN)} more partitions are in the table.`));
    this.root.replaceChildren(picture, ...notes);
  }
}

export class GroupPage {
  constructor([name]) {
    this.sub = el("span", { class: "sub" }, "group");
    this.tiles = { lag: tile("Lag"), members: tile("Members"), partitions: tile("Partitions"), generation: tile("Generation") };
    this.alerts = new Alerts(([, kind, about]) => kind === "group" && about === name);
    this.assignment = new Assignment();
    this.plot = new Plot({ names: (key) => (key[0] === "group" ? "all" : `${key[2]} / ${key[3]}`), fill: true });
    this.parts = new Table([
      { title: "Topic", kind: "name", value: (row) => row.key, show: (row, cell) => linkIn(cell, link("stream", row.topic), visible(row.topic)) },
      { title: "Partition", value: (row) => row.partition, show: (row) => String(row.partition) },
      { title: "Next offset", value: (row) => row.committed, show: (row) => count(row.committed) },
      { title: "End", kind: "wide", value: (row) => row.end, show: (row) => count(row.end) },
      { title: "Lag", value: (row) => row.lag, show: (row) => count(row.lag) },
      { title: "Member", kind: "left wide", value: (row) => row.member, show: (row) => (row.member === null ? "–" : visible(row.member)) },
    ]);
    this.history = new Table([
      { title: "Since", kind: "name", value: (row) => row.at, show: (row) => time(row.at).slice(0, 19) },
      { title: "Generation", value: (row) => row.generation ?? -1, show: (row) => count(row.generation) },
      { title: "Members", value: (row) => row.members, show: (row) => count(row.members) },
      { title: "Joined", kind: "left", value: (row) => row.joined, show: (row) => row.joined || "–" },
      { title: "Left", kind: "left", value: (row) => row.left, show: (row) => row.left || "–" },
      { title: "Partitions moved", kind: "wide", value: (row) => row.moved ?? -1, show: (row) => count(row.moved) },
      { title: "Coordinator", kind: "left wide", value: (row) => row.coordinator, show: (row) => row.coordinator || "–" },
    ], { sort: 0, empty: "No change since the monitor started." });
    this.root = el("div", { class: "page" });
    this.root.append(el("div", { class: "title" }, el("h1", {}, visible(name)), this.sub),
      el("div", { class: "tiles" }, Object.values(this.tiles).map((one) => one.root)), this.alerts.root,
      card("Assignment", this.assignment.root).root, card("Lag", this.plot.root).root, card("Partitions", this.parts.root).root,
      card("Generations", this.history.root).root);
  }

  reset() { this.plot.lines.clear(); }

  close() {
    this.plot.close();
    this.assignment.close();
  }

  update(state) {
    this.alerts.update(state);
    if (state.gone) { put(this.sub, "There is no such group."); return; }
    const found = state.group;
    put(this.sub, "group, " + found.state + (found.coordinator ? ", coordinated by " + visible(found.coordinator) : ""));
    this.tiles.lag.set(short(found.lag));
    this.tiles.members.set(count(found.members.length));
    this.tiles.partitions.set(count(found.partitions.length));
    this.tiles.generation.set(count(found.generation));
    this.assignment.update(found);
    this.plot.update(state.series);
    this.parts.update(found.partitions.map(([topic, partition, member, committed, end, lag]) => ({ key: topic + "/" + String(partition).padStart(6, "0"), topic, partition, member, committed, end, lag })));
    const names = ([shown, all]) => shown.map(visible).join(", ") + (all > shown.length ? ` and ${count(all - shown.length)} more` : "");
    this.history.update(state.generations.map(([at, generation, members, joined, left, moved, coordinator]) => ({ key: String(at), at, generation, members, joined: names(joined), left: names(left), moved, coordinator: visible(coordinator ?? "") })));
  }
}
