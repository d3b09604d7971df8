// The list of streams, and one stream.

import { ChangeBar, ofStream } from "./changes.js";
import { age, card, count, el, link, many, put, rate, short, size, svg, tile, time, visible } from "./dom.js";
import { Messages } from "./messages.js";
import { Plot } from "./plot.js";
import { linkIn, Table } from "./table.js";
import { consumerColumns } from "./readers.js";

const SPARK = 40;

/** The alerts of a page: those that are about it, or all. */
export class Alerts {
  constructor(concerns = () => true) {
    this.concerns = concerns;
    this.root = el("div");
    this.shown = null;
  }

  update(state) {
    const found = state.alerts.filter((one) => this.concerns(one));
    const shown = JSON.stringify([found, state.more_alerts]);
    if (shown === this.shown) return;
    this.shown = shown;
    if (found.length === 0) { this.root.replaceChildren(el("p", { class: "calm" }, "No alerts")); return; }
    const lines = found.slice(0, 8).map(([severity, kind, name, text]) => {
      const target = kind === "stream" ? link("stream", name) : kind === "group" ? link("group", name) : kind === "gateway" ? link("gateway", name) : null;
      const label = target ? el("a", { href: target }, visible(name)) : visible(kind === "sample" ? "" : name);
      return el("li", { class: severity }, el("span", { class: "kind" }, severity), label, " ", visible(text));
    });
    const more = found.length - lines.length + state.more_alerts;
    if (more > 0) lines.push(el("li", {}, `and ${count(more)} more`));
    this.root.replaceChildren(el("ul", { class: "alerts", role: "alert" }, lines));
  }
}

function spark(cell, values) {
  let picture = cell.firstChild;
  if (!picture) {
    picture = svg("svg", { class: "spark", viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("polygon"), svg("polyline"));
    cell.append(picture);
  }
  const most = Math.max(...values, 1), step = 100 / (SPARK - 1), start = SPARK - values.length;
  const points = values.map((one, index) => `${((start + index) * step).toFixed(1)},${(20 - (one / most) * 18).toFixed(1)}`).join(" ");
  if (picture.points === points) return;
  picture.points = points;
  const right = "100,22 " + (start * step).toFixed(1) + ",22";
  picture.firstChild.setAttribute("points", values.length > 1 ? points + " " + right : "");
  picture.lastChild.setAttribute("points", values.length > 1 ? points : "");
}

export class StreamsPage {
  constructor() {
    this.rows = new Map();
    this.now = 0;
    this.tiles = { rate: tile("Recorded"), messages: tile("Messages"), bytes: tile("Storage"), lag: tile("Lag"), streams: tile("Streams"), readers: tile("Readers") };
    this.meter = el("meter", { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, value: 0, hidden: true, "aria-label": "Storage used" });
    this.tiles.bytes.root.append(this.meter);
    this.alerts = new Alerts();
    this.plot = new Plot({ format: rate, names: () => "messages/s", height: 200, fill: true });
    const chart = card("Messages recorded per second", this.plot.root);
    this.table = new Table([
      { title: "Stream", kind: "name", value: (row) => row.key, show: (row, cell) => linkIn(cell, link("stream", row.key), visible(row.key)) },
      { title: "Trend", kind: "trend", value: (row) => row.rate, show: (row, cell) => spark(cell, row.trend) },
      { title: "Rate /s", value: (row) => row.rate, show: (row) => rate(row.rate) },
      { title: "Messages", value: (row) => row.messages, show: (row) => short(row.messages) },
      { title: "Size", kind: "wide", value: (row) => row.bytes, show: (row) => size(row.bytes) },
      { title: "Partitions", kind: "wide", value: (row) => row.partitions, show: (row, cell) => {
        cell.classList.toggle("bad", row.leaderless > 0);
        return row.leaderless ? `${row.partitions}, ${row.leaderless} without leader` : String(row.partitions);
      } },
      { title: "Consumers", kind: "wide", value: (row) => row.consumers, show: (row) => count(row.consumers) },
      { title: "Newest", kind: "wide dim", value: (row) => row.newest, show: (row) => age(row.newest, this.now) },
    ], { empty: "No streams match." });
    const list = card("Streams", this.table.root);
    list.right.append(el("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter streams",
      oninput: (event) => this.table.setFilter(event.target.value) }));
    this.root = el("div", { class: "page" });
    this.root.append(el("h1", {}, "Streams"), el("div", { class: "tiles" }, Object.values(this.tiles).map((one) => one.root)),
      this.alerts.root, chart.root, list.root);
  }

  reset() {
    this.rows.clear();
    this.plot.lines.clear();
  }

  close() { this.plot.close(); }

  update(state) {
    const head = state.head;
    this.now = head.at;
    for (const [name, row] of Object.entries(state.rows)) {
      if (row === null) { this.rows.delete(name); continue; }
      const [perSecond, messages, bytes, partitions, consumers, newest, leaderless] = row;
      const trend = this.rows.get(name)?.trend || [];
      this.rows.set(name, { key: name, rate: perSecond, messages, bytes, partitions, consumers, newest, leaderless, trend });
    }
    for (const row of this.rows.values()) {
      if (row.rate !== null) row.trend.push(row.rate);
      if (row.trend.length > SPARK) row.trend.shift();
    }
    this.tiles.rate.set(rate(head.rate), "msg/s");
    this.tiles.messages.set(short(head.messages ?? null));
    this.tiles.bytes.set(size(head.bytes), "", head.max_bytes ? "of " + size(head.max_bytes) : "");
    this.meter.hidden = !head.max_bytes;
    if (head.max_bytes) this.meter.value = head.bytes / head.max_bytes;
    this.tiles.lag.set(short(head.lag), "", "over all readers");
    this.tiles.streams.set(count(head.streams), "", head.brokers.length ? many(head.brokers.length, "broker") : "");
    this.tiles.readers.set(count(head.consumers + head.groups), "", `${many(head.consumers, "consumer")}, ${many(head.groups, "group")}`);
    this.alerts.update(state);
    this.plot.update(state.series);
    this.table.update([...this.rows.values()]);
  }
}

/** Facts as a list of terms and values. */
export class Facts {
  constructor(...names) {
    this.values = names.map(() => el("dd"));
    this.root = el("dl", { class: "facts" }, names.map((name, index) => el("div", {}, el("dt", {}, name), this.values[index])));
  }

  set(...texts) { texts.forEach((text, index) => put(this.values[index], text)); }
}

export class StreamPage {
  constructor([name], about) {
    this.name = name;
    this.sub = el("span", { class: "sub" });
    this.tiles = { rate: tile("Recorded"), messages: tile("Messages"), bytes: tile("Storage"), newest: tile("Newest message") };
    this.alerts = new Alerts(([, kind, about]) => kind === "stream" && about === name);
    this.rates = new Plot({ format: rate, names: (key) => (key[0] === "partition" ? "partition " + key[2] : "messages/s"), fill: true });
    this.lags = new Plot({ names: (key) => (key[0] === "group" ? "group " + key[1] : key[2]) });
    this.lagCard = card("Lag of readers", this.lags.root);
    this.lagCard.root.hidden = true;
    this.plots = el("div", {}, card("Messages recorded per second", this.rates.root).root, this.lagCard.root);
    this.parts = new Table([
      { title: "Partition", kind: "left", value: (row) => row.number, show: (row) => String(row.number) },
      { title: "First offset", kind: "wide", value: (row) => row.first, show: (row) => count(row.first) },
      { title: "Next offset", value: (row) => row.end, show: (row) => count(row.end) },
      { title: "Messages/s", value: (row) => row.rate, show: (row) => rate(row.rate) },
      { title: "Leader", kind: "wide", value: (row) => row.leader, show: (row, cell) => {
        cell.classList.toggle("bad", row.leader === "" && !row.paused);
        return row.leader === null ? "–" : row.leader === "" ? "none" : visible(row.leader);
      } },
      { title: "In sync", value: (row) => row.in_sync, show: (row, cell) => {
        cell.classList.toggle("warn", row.in_sync < row.replicas);
        return `${row.in_sync} of ${row.replicas}`;
      } },
      { title: "State", kind: "wide", value: (row) => row.paused, show: (row) => [row.paused && "paused", row.readonly && "read-only"].filter(Boolean).join(", ") || "active" },
    ]);
    this.consumers = new Table(consumerColumns(false), { sort: 1, empty: "No consumers." });
    this.groups = new Table([
      { title: "Group", kind: "name", value: (row) => row.key, show: (row, cell) => linkIn(cell, link("group", row.key), visible(row.key)) },
      { title: "Lag", value: (row) => row.lag, show: (row) => count(row.lag) },
      { title: "Members", value: (row) => row.members, show: (row) => count(row.members) },
      { title: "State", value: (row) => row.state, show: (row) => row.state },
    ], { sort: 1 });
    this.consumerCard = card("Consumers", this.consumers.root);
    this.groupCard = card("Groups", this.groups.root);
    this.messages = new Messages(name, about);
    this.changes = new ChangeBar(about);
    this.root = el("div", { class: "page" });
    this.root.append(el("div", { class: "title" }, el("h1", {}, visible(name)), this.sub), this.changes.root,
      el("div", { class: "tiles" }, Object.values(this.tiles).map((one) => one.root)), this.alerts.root, this.plots,
      card("Partitions", this.parts.root).root, this.consumerCard.root, this.groupCard.root, this.messages.root);
  }

  reset() {
    this.rates.lines.clear();
    this.lags.lines.clear();
  }

  close() {
    this.rates.close();
    this.lags.close();
    this.messages.close();
  }

  update(state) {
    this.alerts.update(state);
    if (state.gone) { put(this.sub, "There is no such stream."); return; }
    const found = state.stream;
    put(this.sub, visible(found.subjects.join(", ")));
    this.tiles.rate.set(rate(found.rate), "msg/s");
    if (found.messages === null) this.tiles.messages.set(short(found.end), "", "ever recorded");
    else this.tiles.messages.set(short(found.messages), "", found.end === found.messages ? "" : short(found.end) + " ever recorded");
    this.tiles.bytes.set(size(found.bytes));
    this.tiles.newest.set(age(found.newest, state.head.at), "", found.newest ? time(found.newest).slice(0, 19) : "");
    const lags = state.series.filter((one) => one.key[0] === "consumer" || one.key[0] === "group");
    this.plots.classList.toggle("two", lags.length > 0);
    this.lagCard.root.hidden = lags.length === 0;
    this.rates.update(state.series.filter((one) => !lags.includes(one)));
    if (lags.length) this.lags.update(lags);
    this.changes.update(ofStream(state.head.kind, this.name, found.partitions));
    this.parts.update(found.partitions.map((one) => ({ ...one, key: String(one.number) })));
    this.consumerCard.root.hidden = state.consumers.length === 0;
    this.groupCard.root.hidden = state.groups.length === 0;
    this.consumers.update(state.consumers.map((one) => ({ ...one, key: one.name })));
    this.groups.update(state.groups.map(([key, phase, members, lag]) => ({ key, state: phase, members, lag })));
    this.messages.update(found);
  }
}
