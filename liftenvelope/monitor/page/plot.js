// Live plots: uPlot with the colours of the page, fed by the points of server-sent events.

import { el, short, visible } from "./dom.js";

const COLOURS = 8;
const KEEP = 600;
const plots = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((one) => one.rebuild()));

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Format a time of the day in UTC, as all times of the page; without seconds where the ticks are minutes apart. */
function clock(at, step) {
  const moment = new Date(at * 1000), two = (number) => String(number).padStart(2, "0");
  return two(moment.getUTCHours()) + ":" + two(moment.getUTCMinutes()) + (step < 60 ? ":" + two(moment.getUTCSeconds()) : "");
}

export class Plot {
  /** A plot of several lines over time. `format` formats values; `names` gives a line's name from its key. */
  constructor({ format = short, names, height = 210, fill = false }) {
    this.root = el("div", { class: "plot" });
    this.format = format;
    this.names = names;
    this.height = height;
    this.fill = fill;
    this.lines = new Map();
    this.chart = null;
    this.shape = "";
    this.resizing = new ResizeObserver(() => this.fit());
    this.resizing.observe(this.root);
    plots.add(this);
  }

  close() {
    this.resizing.disconnect();
    plots.delete(this);
    if (this.chart) this.chart.destroy();
    this.chart = null;
  }

  /** Add points. A line that is not named any more is removed. */
  update(series) {
    const seen = new Set();
    for (const one of series) {
      const key = JSON.stringify(one.key);
      seen.add(key);
      const line = this.lines.get(key) || { key: one.key, times: [], values: [] };
      this.lines.set(key, line);
      line.times.push(...one.times);
      line.values.push(...one.values);
      if (line.times.length > KEEP) {
        line.times.splice(0, line.times.length - KEEP);
        line.values.splice(0, line.values.length - KEEP);
      }
    }
    for (const key of [...this.lines.keys()]) if (!seen.has(key)) this.lines.delete(key);
    this.draw();
  }

  data() {
    const lines = [...this.lines.values()];
    if (lines.length === 0) return [[]];
    if (lines.length === 1) return [lines[0].times, lines[0].values];
    return uPlot.join(lines.map((line) => [line.times, line.values]));
  }

  draw() {
    const shape = [...this.lines.keys()].join();
    if (!this.chart || shape !== this.shape) {
      this.shape = shape;
      this.rebuild();
    } else {
      this.chart.setData(this.data());
    }
    // Without a pointer the legend has the newest values.
    if (this.chart.cursor.left < 0) this.chart.setLegend({ idx: this.chart.data[0].length - 1 });
  }

  rebuild() {
    if (this.chart) this.chart.destroy();
    const line = (item, index) => {
      const stroke = colour("--c" + (index % COLOURS));
      const fill = this.fill && index === 0 ? stroke + "26" : undefined;
      const value = (_, number) => (number === null || number === undefined ? "–" : this.format(number));
      const label = visible(this.names(item.key));
      return { label, stroke, fill, width: 1.75, value, spanGaps: true, points: { show: false } };
    };
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    this.chart = new uPlot({
      width: this.width(), height: this.height,
      cursor: { y: false, points: { size: 7 } },
      legend: { live: true },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.08, 1)] } },
      axes: [{ ...axis, space: 80, size: 30, values: (_, ticks, __, ___, step) => ticks.map((one) => clock(one, step)) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((one) => this.format(one)) }],
      series: [{ label: "Time (UTC)", value: (_, at) => (at === null || at === undefined ? "–" : clock(at, 1)) },
        ...[...this.lines.values()].map(line)],
    }, this.data(), this.root);
  }

  width() { return Math.max(this.root.clientWidth - 16, 120); }

  fit() {
    if (this.chart && this.chart.width !== this.width()) this.chart.setSize({ width: this.width(), height: this.height });
  }
}
