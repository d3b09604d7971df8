// Gateways: the list with what each leads and does, and one gateway with its partitions.

import { card, count, el, link, put, rate, short, size, tile, visible } from "./dom.js";
import { Plot } from "./plot.js";
import { Alerts, Facts } from "./streams.js";
import { linkIn, Table } from "./table.js";

/** Return a figure of a gateway; null if its metrics are not read. */
const figure = (row, name) => row.figures?.[name] ?? null;

/** Return the state of a gateway in words. A condition that is not met says more than its health. */
function stateOf(row) {
  if (row.figures && !row.figures.ready) return "not ready: " + row.figures.unmet.map(visible).join(", ");
  return (row.status ?? (row.figures ? "ready" : "unknown")).replaceAll("_", " ");
}

const isWell = (row) => (row.figures ? row.figures.ready : row.status === "serving");

/** Return whether a gateway has its lease, without which it leads no partition. */
const lease = (row) => (row.figures ? (row.figures.unmet.includes("lease") ? "lost" : "held") : "–");

const sum = (rows, read) => {
  const known = rows.map(read).filter((one) => one !== null);
  return known.length ? known.reduce((one, other) => one + other, 0) : null;
};

export class GatewaysPage {
  constructor() {
    this.tiles = { gateways: tile("Gateways"), leads: tile("Partitions led"), pending: tile("Pending acks"), acks: tile("Acks"), reads: tile("Open reads"), connections: tile("Connections") };
    this.alerts = new Alerts(([, kind, name]) => kind === "gateway" || kind === "broker" || (kind === "sample" && name === "gateways"));
    this.plot = new Plot({ names: (key) => key[1] });
    this.plotCard = card("Pending acks", this.plot.root);
    this.table = new Table([
      { title: "Gateway", kind: "name", value: (row) => row.key, show: (row, cell) => linkIn(cell, link("gateway", row.key), visible(row.key)) },
      { title: "Leads", value: (row) => row.leads, show: (row) => count(row.leads) },
      { title: "Pending acks", value: (row) => figure(row, "pending"), show: (row) => count(figure(row, "pending")) },
      { title: "Acks /s", kind: "wide", value: (row) => figure(row, "acks"), show: (row) => rate(figure(row, "acks")) },
      { title: "Open reads", value: (row) => figure(row, "reads"), show: (row) => count(figure(row, "reads")) },
      { title: "Buffered", kind: "wide", value: (row) => figure(row, "buffered"), show: (row) => size(figure(row, "buffered")) },
      { title: "Connections", kind: "wide", value: (row) => figure(row, "connections"), show: (row) => count(figure(row, "connections")) },
      { title: "Lease", kind: "wide", value: lease, show: (row, cell) => {
        cell.classList.toggle("bad", lease(row) === "lost");
        return lease(row);
      } },
      { title: "State", value: stateOf, show: (row, cell) => {
        cell.classList.toggle("bad", !isWell(row));
        return stateOf(row);
      } },
    ], { empty: "No gateways." });
    this.hint = el("p", { class: "sub", hidden: true }, "Start the monitor with --gateway-metrics to see acks, reads and connections.");
    this.root = el("div", { class: "page" });
    this.root.append(el("h1", {}, "Gateways"), el("div", { class: "tiles" }, Object.values(this.tiles).map((one) => one.root)),
      this.alerts.root, this.plotCard.root, card("Gateways", this.table.root).root, this.hint);
  }

  reset() { this.plot.lines.clear(); }

  close() { this.plot.close(); }

  update(state) {
    const rows = state.gateways, known = rows.filter((one) => one.figures);
    this.tiles.gateways.set(count(rows.length), "", `${count(rows.filter(isWell).length)} well`);
    this.tiles.leads.set(short(sum(rows, (one) => one.leads)));
    this.tiles.pending.set(short(sum(known, (one) => one.figures.pending)));
    this.tiles.acks.set(rate(sum(known, (one) => one.figures.acks)), "/s");
    this.tiles.reads.set(short(sum(known, (one) => one.figures.reads)), "", size(sum(known, (one) => one.figures.buffered)) + " buffered");
    this.tiles.connections.set(short(sum(known, (one) => one.figures.connections)));
    this.alerts.update(state);
    this.hint.hidden = known.length > 0;
    this.plotCard.root.hidden = known.length === 0;
    if (known.length) this.plot.update(state.series);
    this.table.update(rows.map((one) => ({ ...one, key: one.id })));
  }
}

export class GatewayPage {
  constructor([name]) {
    this.sub = el("span", { class: "sub" });
    this.tiles = { pending: tile("Pending acks"), acks: tile("Acks"), publishes: tile("Publishes"), reads: tile("Open reads"), connections: tile("Connections"), leads: tile("Partitions led") };
    this.alerts = new Alerts(([, kind, about]) => kind === "gateway" && about === name);
    this.rates = new Plot({ format: rate, names: (key) => (key[2] === "acks" ? "acks/s" : "publishes/s") });
    this.amounts = new Plot({ names: (key) => (key[2] === "reads" ? "open reads" : "pending acks") });
    this.plots = el("div", { class: "two", hidden: true }, card("Publishes and acks per second", this.rates.root).root, card("Pending acks and reads", this.amounts.root).root);
    this.facts = new Facts("Lease", "Open calls", "Buffered for reads", "Partitions with acks to raw publishers, internal ones included", "Not read for their acks yet");
    this.factCard = card("State", this.facts.root);
    this.led = new Table([
      { title: "Stream", kind: "name", value: (row) => row.stream, show: (row, cell) => linkIn(cell, link("stream", row.stream), visible(row.stream)) },
      { title: "Partition", value: (row) => row.partition, show: (row) => String(row.partition) },
      { title: "Next offset", value: (row) => row.end, show: (row) => count(row.end) },
      { title: "In sync", kind: "wide", value: (row) => row.inSync, show: (row) => `${row.inSync} of ${row.replicas}` },
    ], { empty: "It leads no partition of the streams shown." });
    this.ledCard = card("Partitions led", this.led.root);
    this.root = el("div", { class: "page" });
    this.root.append(el("div", { class: "title" }, el("h1", {}, visible(name)), this.sub),
      el("div", { class: "tiles" }, Object.values(this.tiles).map((one) => one.root)), this.alerts.root, this.plots,
      this.factCard.root, this.ledCard.root);
  }

  reset() {
    this.rates.lines.clear();
    this.amounts.lines.clear();
  }

  close() {
    this.rates.close();
    this.amounts.close();
  }

  update(state) {
    this.alerts.update(state);
    if (state.gone) { put(this.sub, "There is no such gateway."); return; }
    const found = state.gateway, figures = found.figures;
    put(this.sub, "gateway" + (found.address ? " on " + visible(found.address) : "") + ", " + stateOf(found));
    this.tiles.leads.set(short(found.leads));
    this.tiles.pending.set(short(figures?.pending ?? null));
    this.tiles.acks.set(rate(figures?.acks ?? null), "/s");
    this.tiles.publishes.set(rate(figures?.publishes ?? null), "/s");
    this.tiles.reads.set(short(figures?.reads ?? null));
    this.tiles.connections.set(short(figures?.connections ?? null));
    this.plots.hidden = this.factCard.root.hidden = figures === null;
    if (figures) {
      this.facts.set(lease(found), count(figures.calls), size(figures.buffered), `${count(figures.bound)} of ${count(figures.led)}`, count(figures.ack_lag));
      const rates = state.series.filter((one) => one.key[2] === "publishes" || one.key[2] === "acks");
      this.rates.update(rates);
      this.amounts.update(state.series.filter((one) => !rates.includes(one)));
    }
    put(this.ledCard.sub, state.more_led ? `${count(state.more_led)} more are not listed` : "");
    this.led.update(state.led.map(([stream, partition, end, inSync, replicas]) => ({ key: stream + "/" + String(partition).padStart(6, "0"), stream, partition, end, inSync, replicas })));
  }
}
