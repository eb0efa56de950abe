// The table of all runs: filter, sort, live, with a small curve each.
import { ask, choose, chosen, colours, empty, go, keep, kept, onKeys, pause, place, poll, renew, report, say, signal } from "./app.js";
import { spark } from "./chart.js";

const COLUMNS = [
  ["", null], ["curve", null], ["run", "run"], ["spec", "spec"], ["seed", "seed"], ["status", "status"], ["steps", "env_steps"],
  ["return", "return"], ["best", "best_return"], ["time", "seconds"], ["created", "created"],
];
const NUMBERS = new Set(["seed", "env_steps", "return", "best_return", "seconds"]);
const AT_ONCE = 150;

export async function runsView(view) {
  const state = { rows: [], shown: [], version: "", at: 0, limit: AT_ONCE, filters: [], words: [], sparks: new Map(), asked: new Map(), drawn: new Map(), visible: new Set() };
  const order = kept("order", { by: "created", falling: true });
  const filter = make("input", { type: "search", "data-filter": true, placeholder: "Filter: words, or status=finished  return>400  tag=paper", value: kept("filter", ""), spellcheck: "false", "aria-label": "filter", oninput: () => later() });
  const count = make("span", { class: "faint" });
  const body = make("tbody"), head = make("tr");
  const table = make("table", { class: "runs all" }, make("thead", {}, head), body);
  const more = make("div", { class: "more" });
  view.append(make("div", { class: "tools" }, filter, count), table, more);

  const seen = new IntersectionObserver((entries) => {
    for (const { target: { dataset: { run } }, isIntersecting } of entries) {
      if (isIntersecting) { state.visible.add(run); want(run); } else state.visible.delete(run);
    }
  }, { rootMargin: "200px" });
  new IntersectionObserver((entries) => {
    if (entries[0].isIntersecting && state.shown.length > state.limit) { state.limit += AT_ONCE; draw(); }
  }, { rootMargin: "600px" }).observe(more);

  // small curves of what can be seen, a handful at a time
  let waiting = new Set(), timer = 0;
  const at = (row) => (row.live ? row.live.done : row.env_steps);
  function want(run) {
    const row = state.rows.find((one) => one.run === run);
    if (!row || state.asked.get(run) === at(row)) return;
    state.asked.set(run, at(row));
    waiting.add(run);
    clearTimeout(timer);
    timer = setTimeout(fetchSparks, 30);
  }
  async function fetchSparks() {
    const runs = [...waiting].slice(0, 8);
    waiting = new Set([...waiting].slice(8));
    if (!runs.length) return;
    try {
      for (const [run, y] of Object.entries(await ask("sparks", { run: runs }))) { state.sparks.set(run, y); drawSpark(run); }
    } catch (problem) { report(problem); }
    if (waiting.size) fetchSparks();
  }
  function drawSpark(run) {
    const canvas = body.querySelector(`tr[data-run="${CSS.escape(run)}"] canvas`);
    if (canvas) spark(canvas, state.sparks.get(run), colours()[0]);
  }

  function drawHead() {
    head.replaceChildren(...COLUMNS.map(([name, key]) => {
      if (!key) return make("th", {}, name);
      const arrow = order.by === key ? (order.falling ? " ↓" : " ↑") : "";
      return make("th", { class: NUMBERS.has(key) ? "number" : "", "aria-sort": arrow ? (order.falling ? "descending" : "ascending") : "none" },
        make("button", { class: "plain", onclick: () => sortBy(key) }, name + arrow));
    }));
  }
  function sortBy(key) {
    order.falling = order.by === key ? !order.falling : NUMBERS.has(key) || key === "created";
    order.by = key;
    keep("order", order);
    drawHead();
    arrange();
  }

  function arrange() {
    const value = (row) => (order.by === "env_steps" && row.live ? row.live.done : row[order.by]);
    const text = (row) => [row.run, row.spec, row.name, row.status, ...(row.tags || []), ...(row.auto_tags || []), ...(row.changes || [])].join(" ").toLowerCase();
    state.shown = state.rows.filter((row) => { const all = text(row); return state.words.every((word) => all.includes(word)); });
    state.shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === y || (x ?? null) === (y ?? null)) return a.run < b.run ? -1 : 1;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * (order.falling ? -1 : 1);
    });
    state.at = Math.min(state.at, Math.max(0, state.shown.length - 1));
    const same = body.children.length && body.children.length === Math.min(state.limit, state.shown.length) && state.shown.every((row, i) => i >= state.limit || body.children[i].dataset.run === row.run);
    if (same) redraw(); else draw();
  }

  function draw() {
    drawHead();
    drawCount();
    seen.disconnect();
    const rows = state.shown.slice(0, state.limit).map(line);
    body.replaceChildren(...rows);
    more.replaceChildren(...(state.shown.length ? [] : [empty(state.rows.length ? "No run matches." : "There are no runs here yet: `cadenza train CartPole-v1:ppo` makes one.")]));
    rows.forEach((row) => seen.observe(row));
    for (const row of state.shown.slice(0, state.limit)) if (state.sparks.has(row.run)) drawSpark(row.run);
  }
  function drawCount() {
    const running = state.rows.filter((row) => row.live).length;
    const text = `${state.shown.length === state.rows.length ? "" : `${state.shown.length} of `}${state.rows.length} ${state.rows.length === 1 ? "run" : "runs"}${running ? `, ${running} running` : ""}`;
    if (count.textContent !== text) count.textContent = text;
  }
  // The same runs in the same order: only what has changed about them.
  function redraw() {
    drawCount();
    state.shown.slice(0, state.limit).forEach((row, i) => {
      if (state.drawn.get(row.run) === row.text) return;
      const old = [...body.children[i].children], fresh = [...line(row, i).children];
      old.forEach((cell, n) => { if (!cell.classList.contains("spark")) renew(cell, fresh[n]); });
      if (at(row) !== state.asked.get(row.run) && state.visible.has(row.run)) want(row.run);
    });
  }

  function line(row, i) {
    state.drawn.set(row.run, row.text);
    const box = make("input", { type: "checkbox", "aria-label": "choose for comparison", checked: chosen.has(row.run), onclick: (event) => { event.stopPropagation(); choose(row.run); } });
    const steps = row.live ? row.live.done : row.env_steps;
    const share = row.budget && steps ? Math.min(1, steps / row.budget) : null;
    const under = row.name || (row.changes || []).join(" ") || (row.tags || []).join(", ");
    const left = row.live && row.live.left !== null && row.live.left !== undefined ? `${clock(row.live.left)} left${row.live.phase ? ` of ${row.live.phase}` : ""}` : "";
    return make("tr", { "data-run": row.run, class: i === state.at ? "at" : "", onclick: () => go(place.run(row.run)) },
      make("td", { class: "check" }, box), make("td", { class: "spark" }, make("canvas", { "aria-hidden": "true" })),
      make("td", {}, make("a", { href: place.run(row.run), title: row.run }, row.run), under ? make("small", { class: "clip" }, under) : ""),
      make("td", {}, row.spec || ""), make("td", { class: "number" }, String(row.seed ?? "–")),
      make("td", {}, badge(row.status)),
      make("td", { class: "number" }, number(steps), share !== null && share < 1 ? make("small", {}, make("progress", { max: 1, value: share })) : ""),
      make("td", { class: "number strong" }, number(row.live?.latest_return ?? row.return)), make("td", { class: "number" }, number(row.best_return)),
      make("td", { class: "number" }, row.seconds ? clock(row.seconds) : "–", left ? make("small", { class: "nowrap" }, left) : ""),
      make("td", { class: "faint nowrap" }, when(row.created)));
  }

  function move(by) {
    state.at = Math.max(0, Math.min(state.shown.length - 1, state.at + by));
    if (state.at >= state.limit) { state.limit = state.at + AT_ONCE; draw(); }
    body.querySelector(".at")?.classList.remove("at");
    const row = body.children[state.at];
    row?.classList.add("at");
    row?.scrollIntoView({ block: "nearest" });
  }

  function split() {
    const parts = filter.value.match(/\S+/g) || [];
    state.filters = parts.filter((part) => /[=<>]/.test(part) && /^[^=<>!]+[=<>!]=?./.test(part));
    state.words = parts.filter((part) => !/[=<>]/.test(part)).map((part) => part.toLowerCase());
  }
  let typing = 0;
  function later() {
    clearTimeout(typing);
    keep("filter", filter.value);
    const before = state.filters.join(" ");
    split();
    if (before === state.filters.join(" ")) arrange();
    else typing = setTimeout(() => { state.version = ""; refresh().catch(report); }, 250);
  }

  async function refresh() {
    const begun = performance.now();
    const found = await ask("runs", { filter: state.filters, known: state.version });
    state.took = performance.now() - begun;
    if (!found.runs || found.version === state.version) return;
    found.runs.forEach((row) => { row.text = JSON.stringify(row); });
    Object.assign(state, { rows: found.runs, version: found.version });
    document.title = `runs in ${found.root}`;
    arrange();
  }

  onKeys({
    j: { say: "next run", does: () => move(1) }, k: { say: "run before", does: () => move(-1) },
    ArrowDown: { does: () => move(1) }, ArrowUp: { does: () => move(-1) },
    Enter: { say: "open", does: () => state.shown[state.at] && go(place.run(state.shown[state.at].run)) },
    x: { say: "choose for comparison", does: () => { const row = state.shown[state.at]; if (row) { choose(row.run); body.children[state.at].querySelector("input").checked = chosen.has(row.run); } } },
    e: { say: "episodes", does: () => state.shown[state.at] && go(place.run(state.shown[state.at].run, "episodes")) },
    G: { say: "last run", does: () => move(1e9) }, g: { say: "first run", does: () => move(-1e9) },
    u: { say: "choose none", does: () => { [...chosen].forEach((run) => choose(run, false)); draw(); say("no run is chosen"); } },
  });
  window.addEventListener("look", () => state.sparks.forEach((_, run) => drawSpark(run)), { signal: signal() });
  split();
  await refresh();
  // less often where all that trains has done so for long, or where there is so much to look through that it takes a while
  const youngest = () => Math.min(...state.rows.filter((row) => row.live).map((row) => row.seconds || 0), Infinity);
  poll(() => Math.max(2500, Math.min(15000, 200 * state.took), Number.isFinite(youngest()) ? pause(youngest()) : 0), refresh);
}

export function badge(status) { return make("span", { class: `badge ${/^[a-z]+$/.test(status || "") ? status : ""}` }, status || "unknown"); }

export function when(text) {
  const time = new Date(text || NaN);
  if (Number.isNaN(time.getTime())) return "–";
  const day = time.toLocaleDateString(undefined, { day: "2-digit", month: "short" });
  return `${day} ${time.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false })}`;
}
