// The frame of the inspector: which view is shown, how it asks the server, keys, and the look.
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { episodeView } from "./episode.js";
import { compareView } from "./compare.js";

const view = document.getElementById("view"), bar = document.getElementById("bar"), told = document.getElementById("told");
const PALETTES = {
  light: ["#0b5cad", "#d1600a", "#12805c", "#b3224b", "#6d3fb5", "#5b6470", "#94740a", "#0f8fa8"],
  dark: ["#5aa9f5", "#f59a4c", "#45c493", "#f0708f", "#b28df2", "#a3adba", "#d9b44a", "#4cc9e0"],
};
export const chosen = new Set(kept("chosen", []));
let alive = new AbortController(), keys = {};

export function kept(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(`cadenza.${name}`)) ?? otherwise; } catch { return otherwise; }
}
export function keep(name, value) {
  try { localStorage.setItem(`cadenza.${name}`, JSON.stringify(value)); } catch { /* a private window */ }
}

export async function ask(what, query = {}) {
  const signal = alive.signal;
  const answer = await fetch(`/api/${what}?${encoded(query)}`, { signal });
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error || answer.statusText), { status: answer.status });
  return found;
}
export function encoded(query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const one of [value].flat()) if (one !== undefined && one !== null) parameters.append(name, one);
  return parameters;
}

// Milliseconds until the next look at a run that has trained for so many seconds: the longer it is, the less its curves
// move in a second.
export function pause(seconds) { return Math.min(15000, Math.max(2000, 1000 * (seconds || 0) / 60)); }

// Again and again for as long as the view is shown and somebody can see it: a hidden page does nothing at all.
export function poll(pause, work) {
  const signal = alive.signal;
  let timer = 0, busy = false;
  const later = () => { if (!signal.aborted && !document.hidden) timer = setTimeout(turn, typeof pause === "function" ? pause() : pause); };
  async function turn() {
    if (signal.aborted) return;
    busy = true;
    await work().catch(report);
    busy = false;
    later();
  }
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden && !busy) turn();
  }, { signal });
  later();
}

// Makes an element like a fresh one by touching what differs alone: what stays is not laid out and painted again.
export function renew(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const alike = old.childNodes.length && old.childNodes.length === fresh.childNodes.length && old.cloneNode(false).isEqualNode(fresh.cloneNode(false));
  if (!alike) { old.replaceWith(fresh); return; }
  const parts = [...fresh.childNodes];
  [...old.childNodes].forEach((part, i) => renew(part, parts[i]));
}

export function report(problem) {
  if (problem.name === "AbortError") return;
  const away = problem instanceof TypeError && /fetch/i.test(problem.message);
  say(away ? "The inspector has ended: start `cadenza inspect` again." : problem.message, true);
}
let silence = 0;
export function say(text, bad = false) {
  told.textContent = text;
  told.className = bad ? "bad shown" : "shown";
  clearTimeout(silence);
  silence = setTimeout(() => { told.className = ""; }, bad ? 8000 : 2500);
}

export const place = {
  run: (run, tab = "curves") => `#/run/${encodeURIComponent(run)}/${tab}`,
  episode: (run, number, query = {}) => `#/run/${encodeURIComponent(run)}/episode/${number}?${encoded(query)}`,
  compare: (runs) => `#/compare?${encoded({ run: runs })}`,
};
export function go(hash) { location.hash = hash; }

export function choose(run, yes = !chosen.has(run)) {
  if (yes) chosen.add(run); else chosen.delete(run);
  keep("chosen", [...chosen]);
  drawBar();
}

export function theme() { return document.documentElement.dataset.theme; }
export function colours() { return PALETTES[theme()]; }
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  drawBar();
  window.dispatchEvent(new Event("look"));
}
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => { if (!kept("theme", "")) setTheme(dark.matches ? "dark" : "light"); });
function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  keep("theme", next);
  setTheme(next);
}

function drawBar() {
  const here = location.hash.startsWith("#/compare") ? "compare" : "runs";
  bar.replaceChildren(
    make("a", { class: "brand", href: "#/" }, "cadenza"),
    make("nav", {}, make("a", { href: "#/", class: here === "runs" ? "here" : "" }, "Runs"),
      make("a", { href: place.compare([...chosen]), class: here === "compare" ? "here" : "", title: "compare the chosen runs (c)" },
        `Compare${chosen.size ? ` ${chosen.size}` : ""}`)),
    make("span", { class: "space" }),
    make("button", { class: "plain", title: "dark or light (t)", "aria-label": "dark or light", onclick: switchTheme }, theme() === "dark" ? "☀" : "☾"),
    make("button", { class: "plain", title: "keys (?)", "aria-label": "keys", onclick: help }, "?"),
  );
}

// Keys: a view names its own; `say` is what the help tells.
export function onKeys(own) { keys = own; }
const COMMON = {
  "?": { say: "this help", does: () => help() },
  t: { say: "dark or light", does: switchTheme },
  c: { say: "compare the chosen runs", does: () => go(place.compare([...chosen])) },
  r: { say: "all runs", does: () => go("#/") },
  "/": { say: "filter", does: () => document.querySelector("[data-filter]")?.focus() },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const dialog = document.querySelector("dialog");
  if (dialog) { dialog.close(); event.preventDefault(); return; }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "range" && event.target.type !== "checkbox") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const name = (event.shiftKey && event.key.length > 1 ? "Shift+" : "") + (event.key === " " ? "Space" : event.key);
  const found = keys[name] || COMMON[name];
  if (!found || (name === "Enter" && event.target.closest("a, button, summary")) || (name === "Space" && event.target.closest("button, summary, input[type=checkbox]"))) return;  // its own
  event.preventDefault();
  found.does(event);
});
function help() {
  const lines = Object.entries({ ...keys, ...COMMON }).filter(([key, one]) => one.say && (key !== "/" || document.querySelector("[data-filter]")));
  const dialog = make("dialog", { onclick: () => dialog.close(), onclose: () => dialog.remove() }, make("h2", {}, "Keys"),
    make("table", {}, ...lines.map(([key, one]) => make("tr", {}, make("td", {}, make("kbd", {}, one.shown || key)), make("td", {}, one.say)))));
  document.body.append(dialog);
  dialog.showModal();
}

export function empty(text) { return make("p", { class: "empty" }, text); }

function route() {
  alive.abort();
  alive = new AbortController();
  onKeys({});
  drawBar();
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  const query = new URLSearchParams(search), parts = path.split("/").slice(1).map(decoded);
  view.replaceChildren();
  document.title = "cadenza";
  const show = parts[0] === "compare" ? () => compareView(view, query.getAll("run"))
    : parts[0] === "run" && parts[2] === "episode" ? () => episodeView(view, parts[1], Number(parts[3]) || 0, query)
      : parts[0] === "run" && parts[1] ? () => runView(view, parts[1], parts[2] || "curves")
        : () => runsView(view);
  show().catch((problem) => { if (problem.name !== "AbortError") view.replaceChildren(empty(problem.message)); });
}
function decoded(part) { try { return decodeURIComponent(part); } catch { return part; } }
export function signal() { return alive.signal; }

setTheme(kept("theme", "") || (dark.matches ? "dark" : "light"));
if (location.search) history.replaceState(null, "", `/${location.hash}`);  // the token is in a cookie now
window.addEventListener("hashchange", route);
route();
