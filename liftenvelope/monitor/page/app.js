// Chooses the page by the part of the address after "#", and keeps it up to date by server-sent events.

import { count, el, put, visible } from "./dom.js";
import { GatewayPage, GatewaysPage } from "./gateways.js";
import { ConsumerPage, GroupPage, ReadersPage } from "./readers.js";
import { StreamPage, StreamsPage } from "./streams.js";

const PAGES = { streams: StreamsPage, readers: ReadersPage, stream: StreamPage, consumer: ConsumerPage, group: GroupPage, gateways: GatewaysPage, gateway: GatewayPage };
const NAMES = { streams: 0, readers: 0, stream: 1, consumer: 2, group: 1, gateways: 0, gateway: 1 };
const SECTIONS = { streams: "streams", stream: "streams", gateways: "gateways", gateway: "gateways" };
const RETRY = 2000;
const LATE = 15000;

const main = document.getElementById("main");
const live = document.getElementById("live");
const gateways = document.getElementById("gateways-link");
const badge = document.getElementById("alert-count");
let about = { where: "", payloads: true };
let page = null, source = null, retry = null, heard = 0, failing = false;

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  let names = [];
  try { names = parts.slice(1).map(decodeURIComponent); } catch { return ["streams", []]; }
  const name = parts[0] || "streams";
  return PAGES[name] && names.length === NAMES[name] ? [name, names] : ["streams", []];
}

function say(state, text) {
  if (live.dataset.state !== state) live.dataset.state = state;
  put(live, text);
}

function open() {
  const [name, names] = route();
  clearTimeout(retry);
  if (source) source.close();
  if (page) page.close();
  page = new PAGES[name](names, about);
  main.replaceChildren(page.root);
  document.title = (names.length ? visible(names.join(" / ")) + " – " : "") + "liftenvelope monitor";
  for (const anchor of document.querySelectorAll("nav a")) {
    if (anchor.dataset.page === (SECTIONS[name] ?? "readers")) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  follow(name, names);
}

function follow(name, names) {
  const query = new URLSearchParams([["page", name], ...names.map((one) => ["name", one])]);
  source = new EventSource("api/events?" + query);
  const mine = source;
  source.onopen = () => page.reset(); // the server sends everything again
  source.onmessage = (event) => {
    if (mine !== source) return;
    heard = Date.now();
    receive(JSON.parse(event.data));
  };
  source.onerror = () => {
    if (mine !== source) return;
    say("off", "monitor unreachable");
    if (mine.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY);
  };
}

function receive(state) {
  if (!state.head) return;
  failing = state.alerts.some(([, kind, name]) => kind === "sample" && name === "connection");
  say(failing ? "late" : "on", failing ? "servers unreachable" : "live");
  const many = state.alerts.length + state.more_alerts;
  badge.hidden = many === 0;
  put(badge, many === 1 ? "1 alert" : count(many) + " alerts");
  gateways.hidden = state.head.gateways === 0;
  page.update(state);
}

setInterval(() => {
  if (heard && live.dataset.state === "on" && Date.now() - heard > LATE) say("late", "no new samples");
}, 1000);

addEventListener("hashchange", () => { open(); main.focus(); scrollTo(0, 0); });
addEventListener("keydown", (event) => {
  const field = document.querySelector("input[type=search]");
  if (event.key === "/" && field && !event.target.closest("input, select, textarea")) {
    event.preventDefault();
    field.focus();
  }
});
document.getElementById("skip").addEventListener("click", () => main.focus());

async function start() {
  try {
    const answer = await fetch("api/about");
    if (answer.status === 401) { location.replace("login"); return; }
    about = await answer.json();
  } catch { /* the events tell */ }
  put(document.getElementById("where"), visible(about.where));
  open();
}

main.append(el("p", { class: "calm" }, "Waiting for the first sample."));
start();
