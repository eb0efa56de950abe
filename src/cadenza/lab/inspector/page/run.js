// One run: its curves, episodes, settings and where they came from, checkpoints, the machine, alerts and log.
import { ask, choose, chosen, empty, encoded, go, keep, kept, onKeys, pause, place, poll, renew, report } from "./app.js";
import { Chart, smoothed, thinned } from "./chart.js";
import { badge, when } from "./runs.js";

const TABS = ["curves", "episodes", "config", "checkpoints", "machine", "log"];
const AXES = { env_steps: "env_steps", "time/seconds": "wall time", updates: "updates" };
const USUAL = [/^eval\/return_mean$/, /^collect\/return_mean$/, /^eval\/(won|success)/, /^train\/(.*\/)?(loss|policy_loss|value_loss|entropy|kl|explained_variance)$/];
const MOST = 12;

export async function runView(view, run, tab) {
  const detail = await ask("run", { run });
  document.title = run;
  const head = make("div", { class: "head" }), body = make("section", { class: "body" });
  const tabs = make("nav", { class: "tabs" }, ...TABS.map((name, i) => make("a", { href: place.run(run, name), class: name === tab ? "here" : "", title: `key ${i + 1}` },
    name === "log" && detail.alerts.length ? `log · ${detail.alerts.length} alert${detail.alerts.length === 1 ? "" : "s"}` : name)));
  view.replaceChildren(head, tabs, body);
  drawHead(head, run, detail);
  const show = { curves, episodes, config, checkpoints, machine, log }[tab];
  if (!show) throw new Error(`there is no '${tab}'`);
  const keys = Object.fromEntries(TABS.map((name, i) => [String(i + 1), { say: name, does: () => go(place.run(run, name)) }]));
  keys.x = { say: "choose for comparison", does: () => { choose(run); drawHead(head, run, detail); } };
  onKeys(keys);
  if (detail.live || detail.facts.status === "running") {
    poll(() => pause(detail.facts.seconds), async () => {
      const now = await ask("stand", { run, known: detail.version, ...detail.following?.query() });
      if (now.facts) {
        Object.assign(detail.facts, now.facts, { status: now.status, return: now.facts["eval/return_mean"] });
        Object.assign(detail, { live: now.live, version: now.version });
        drawHead(head, run, detail);
      }
      const unknown = [...(detail.unlisted || []), ...(now.curves?.names || [])].filter((name) => !detail.metrics.includes(name));
      if (unknown.length) {  // its first rows have come, or its first evaluation
        const { metrics, alerts } = await ask("run", { run });
        Object.assign(detail, { metrics: [...metrics, ...unknown.filter((name) => !metrics.includes(name))], alerts });
        await show(body, run, detail, keys);
      } else if (now.curves) detail.following?.take(now.curves);
    });
  }
  await show(body, run, detail, keys);
}

function drawHead(head, run, { facts, live, budget, message }) {
  const steps = live ? live.done : facts.env_steps, fact = (name, value) => make("div", { class: "fact" }, make("small", {}, name), make("b", {}, value));
  const share = budget && steps ? Math.min(1, steps / budget) : null;
  renew(head.firstChild || head.appendChild(make("div")), make("div", {},
    make("div", { class: "title" }, make("h1", {}, run), badge(facts.status),
      make("label", { class: "faint" }, make("input", { type: "checkbox", checked: chosen.has(run), onchange: () => choose(run) }), " compare")),
    message ? make("p", { class: "note" }, message) : "",
    make("div", { class: "facts" },
      fact("spec", facts.spec || "–"), fact("seed", String(facts.seed ?? "–")), fact("return", number(live?.latest_return ?? facts.return)), fact("best", number(facts.best_return)),
      fact("env_steps", budget && share < 1 ? `${number(steps)} of ${number(budget)}` : number(steps)), fact("time", facts.seconds ? clock(facts.seconds) : "–"),
      ...(live && live.speed ? [fact(live.speed_unit === "env_steps" ? "steps/s" : `${live.speed_unit}/s`, number(live.speed)), fact(live.phase ? `left of ${live.phase}` : "left", live.left === null ? "–" : clock(live.left))] : []),
      fact("created", when(facts.created)),
      ...(facts.name ? [fact("name", facts.name)] : []), fact("tags", [...(facts.tags || []), ...(facts.auto_tags || [])].join(", ") || "–")),
    share !== null && share < 1 ? make("progress", { max: 1, value: share }) : ""));
  head.querySelector("input").checked = chosen.has(run);  // a click has changed it without a trace in what is compared
}

// curves

async function curves(body, run, detail, keys, only = null) {
  const names = only || detail.metrics, memory = only ? "machine" : "metrics";
  const usual = names.filter((name) => (only ? true : USUAL.some((one) => one.test(name)))).slice(0, MOST);
  const stored = kept(memory, []).filter((name) => names.includes(name));
  const state = { names: stored.length ? stored : usual, axis: kept("axis", "env_steps"), smooth: only ? 0 : kept("smooth", 0), zoom: null, size: 0, asked: 0, loading: false, data: new Map(), charts: new Map() };
  const grid = make("div", { class: "grid" }), note = make("p", { class: "faint" });
  const picked = make("span", { class: "faint" });
  const list = make("div", { class: "choices" }), search = make("input", { type: "search", "data-filter": true, placeholder: "Find a metric", "aria-label": "find a metric", oninput: drawChoices });
  const axis = make("select", { "aria-label": "along", onchange: (event) => { state.axis = event.target.value; keep("axis", state.axis); state.zoom = null; load().catch(report); } },
    ...Object.entries(AXES).map(([key, text]) => make("option", { value: key, selected: key === state.axis }, text)));
  const amount = make("output", {}, String(state.smooth));
  const smooth = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smooth, "aria-label": "smoothing", oninput: (event) => { state.smooth = Number(event.target.value); amount.textContent = state.smooth; keep("smooth", state.smooth); draw(); } });
  const thin = make("span", { class: "faint" });
  const whole = make("button", { onclick: () => zoom(null), hidden: true }, "whole run");
  const panel = make("details", { class: "picker", open: kept("picker", false), ontoggle: (event) => keep("picker", event.target.open) }, make("summary", {}, "metrics ", picked), search, list);
  body.replaceChildren(make("div", { class: "tools" }, make("label", {}, "along ", axis), make("label", {}, "smoothing ", smooth, " ", amount), thin, whole, make("span", { class: "faint hint" }, "drag to zoom, double-click to reset")), panel, note, grid);

  function drawChoices() {
    const wanted = search.value.toLowerCase();
    picked.textContent = `${state.names.length} of ${names.length} shown`;
    list.replaceChildren(...names.filter((name) => name.toLowerCase().includes(wanted)).map((name) => make("label", {},
      make("input", { type: "checkbox", checked: state.names.includes(name), onchange: (event) => {
        state.names = event.target.checked ? [...state.names, name] : state.names.filter((one) => one !== name);
        keep(memory, state.names);
        drawChoices();
        load().catch(report);
      } }), ` ${name}`)));
  }

  const lines = (name) => {
    const { x, y } = state.data.get(name) || { x: [], y: [] };
    return state.smooth ? [{ label: name, x, y, dim: true }, { label: name, x, y: smoothed(y, state.smooth) }] : [{ label: name, x, y }];
  };
  function draw() {
    const charts = state.names.map((name) => {
      if (!state.charts.has(name)) state.charts.set(name, new Chart({ title: name, axis: state.axis === "time/seconds" ? "time" : state.axis, onzoom: zoom, zero: Boolean(only) }));
      const chart = state.charts.get(name);
      chart.axis = state.axis === "time/seconds" ? "time" : state.axis;
      chart.marks = state.axis === "env_steps" ? detail.alerts.filter((one) => one.metric === name).map((one) => one.env_steps) : [];
      chart.set(lines(name), state.zoom);
      return chart.node;
    });
    if (charts.length !== grid.children.length || charts.some((node, i) => grid.children[i] !== node)) grid.replaceChildren(...charts);
    whole.hidden = !state.zoom;
    thin.textContent = state.smooth ? "faint: as measured" : "";
    if (!charts.length) grid.replaceChildren(empty(names.length ? "Choose a metric." : "There is no row of metrics yet."));
  }

  function zoom(span) { state.zoom = span; load().catch(report); }

  async function load() {
    const turn = ++state.asked;  // of answers that overtake each other the last wish counts
    state.loading = true;
    try { await take(() => turn !== state.asked); } finally { if (turn === state.asked) state.loading = false; }
  }
  async function take(overtaken) {
    if (!state.names.length) { draw(); return; }
    const [low, high] = state.zoom || [];
    const found = await ask("curves", { run, metric: state.names, axis: state.axis, low, high, begin: 0, quick: 1 });
    if (overtaken()) return;
    state.size = found.size;
    detail.unlisted = found.names || [];  // rows may have come after the list of metrics was made
    for (const [name, points] of Object.entries(found.curves)) state.data.set(name, points);
    note.textContent = found.every ? "" : "Many rows: some of them are shown. Look closer to see each one.";
    draw();
    if (found.rare.length) {
      const rest = await ask("curves", { run, metric: found.rare, axis: state.axis, low, high });
      if (overtaken()) return;
      for (const [name, points] of Object.entries(rest.curves)) state.data.set(name, points);
      draw();
    }
  }

  // What was written since: only curves that got longer are touched.
  function extend(found) {
    if (found.asked !== state.asked || state.loading || state.zoom) return;
    if (found.size < state.size) { load().catch(report); return; }  // it went on from an earlier checkpoint
    state.size = found.size;
    for (const [name, { x, y }] of Object.entries(found.curves)) {
      if (!x.length || !state.charts.has(name)) continue;
      const before = state.data.get(name) || { x: [], y: [] };
      state.data.set(name, thinned(before.x.concat(x), before.y.concat(y)));
      state.charts.get(name).extend(lines(name));
    }
  }

  keys.s = { say: "smoother", does: () => { smooth.value = Math.min(0.99, state.smooth < 0.5 ? 0.6 : state.smooth < 0.8 ? 0.9 : state.smooth < 0.95 ? 0.97 : 0); if (state.smooth >= 0.95) smooth.value = 0; smooth.dispatchEvent(new Event("input")); } };
  keys.m = { say: "choose metrics", does: () => { panel.open = !panel.open; } };
  keys.w = { say: "whole run", does: () => zoom(null) };
  onKeys(keys);
  drawChoices();
  await load();
  detail.following = {
    query: () => (state.zoom || state.loading ? {} : { metric: state.names.length ? state.names : ["env_steps"], axis: state.axis, begin: state.size, asked: state.asked }),
    take: extend,
  };
}

async function machine(body, run, detail, keys) {
  const names = detail.metrics.filter((name) => /^(system|time)\//.test(name) && name !== "time/seconds");
  const pairs = (object) => Object.entries(object || {}).map(([name, value]) => make("tr", {}, make("td", { class: "faint" }, name), make("td", {}, plain(value))));
  const charts = make("div");
  body.replaceChildren(charts, make("div", { class: "two" },
    make("div", {}, make("h2", {}, "Machine"), make("table", {}, ...pairs(detail.machine))),
    make("div", {}, make("h2", {}, "Versions"), make("table", {}, ...pairs(detail.versions))),
    make("div", {}, make("h2", {}, "Decided automatically"), make("table", {}, ...pairs(Object.fromEntries(detail.decisions.map(([name, one]) => [name, one?.reason ? `${plain(one.value)} (${one.reason})` : one])))))));
  await curves(charts, run, detail, keys, names);
}

export const plain = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

// episodes

async function episodes(body, run, detail, keys) {
  const state = { begin: 0, sort: "episode", falling: true, total: 0, rows: [], at: 0 };
  const COUNT = 100, list = make("tbody"), pages = make("div", { class: "tools" }), head = make("tr");
  const open = (k) => go(place.episode(run, k));
  const chart = new Chart({ title: "return by episode", axis: "episode", height: 170, onpick: (x) => open(Math.max(0, Math.min(state.total - 1, Math.round(x)))) });
  const jump = make("input", { type: "number", min: 0, placeholder: "episode", "data-filter": true, "aria-label": "go to episode", onkeydown: (event) => { if (event.key === "Enter" && event.target.value !== "") open(Number(event.target.value)); } });
  const found = make("table", { class: "runs narrow" }, make("thead", {}, head), list);
  body.replaceChildren(chart.node, pages, found);
  const teams = () => Object.keys(state.rows[0]?.groups || {});

  async function load() {
    const answer = await ask("episodes", { run, sort: state.sort, falling: state.falling, begin: state.begin, count: COUNT });
    Object.assign(state, { total: answer.total, rows: answer.episodes, at: 0 });
    if (!answer.total) { body.replaceChildren(empty(detail.facts.cleaned ? "Its episodes were cleaned up." : "No episodes are recorded (logging.episodes=true keeps them; they are written with each checkpoint).")); return; }
    chart.set([{ label: "return", ...answer.curve }]);
    draw();
  }
  function draw() {
    const several = teams().length > 1;
    const columns = [["episode", "episode"], ["return", "return"], ...(several ? teams().map((name) => [name, null]) : []), ["length", "length"], ...(state.rows.some((row) => row.won !== null) ? [["won", null]] : []), ["environment", "env"], ["seed", null]];
    head.replaceChildren(...columns.map(([name, key]) => make("th", { class: "number" }, key ? make("button", { class: "plain", onclick: () => { state.falling = state.sort === key ? !state.falling : true; state.sort = key; state.begin = 0; load().catch(report); } }, name + (state.sort === key ? (state.falling ? " ↓" : " ↑") : "")) : name)));
    list.replaceChildren(...state.rows.map((row, i) => make("tr", { class: i === state.at ? "at" : "", onclick: () => open(row.episode) }, ...columns.map(([name]) =>
      make("td", { class: "number" }, name === "episode" ? make("a", { href: place.episode(run, row.episode) }, String(row.episode)) : name === "return" ? number(row.return) : name === "length" ? String(row.length) : name === "won" ? (row.won ? "yes" : "no") : name === "environment" ? String(row.env) : name === "seed" ? String(row.seed) : number(row.groups[name]))))));
    const turn = (by) => { state.begin = Math.max(0, Math.min(state.total - 1, state.begin + by)); load().catch(report); };
    pages.replaceChildren(jump, make("button", { disabled: state.begin === 0, onclick: () => turn(-COUNT) }, "‹"), make("span", { class: "faint" }, `${state.begin + 1}–${Math.min(state.total, state.begin + COUNT)} of ${state.total} episodes`), make("button", { disabled: state.begin + COUNT >= state.total, onclick: () => turn(COUNT) }, "›"), make("span", { class: "faint hint" }, "each can be seen again: click it, or a point of the curve"));
  }
  const move = (by) => { state.at = Math.max(0, Math.min(state.rows.length - 1, state.at + by)); list.querySelector(".at")?.classList.remove("at"); list.children[state.at]?.classList.add("at"); list.children[state.at]?.scrollIntoView({ block: "nearest" }); };
  Object.assign(keys, { j: { say: "next episode", does: () => move(1) }, k: { say: "episode before", does: () => move(-1) }, ArrowDown: { does: () => move(1) }, ArrowUp: { does: () => move(-1) }, Enter: { say: "see it again", does: () => state.rows[state.at] && open(state.rows[state.at].episode) } });
  onKeys(keys);
  await load();
}

// config

async function config(body, run, detail) {
  const state = { origins: null, words: "", set: false }, list = make("tbody"), note = make("p", { class: "faint" }, "finding where each value comes from …");
  const search = make("input", { type: "search", "data-filter": true, placeholder: "Find a setting", "aria-label": "find a setting", oninput: (event) => { state.words = event.target.value.toLowerCase(); draw(); } });
  const only = make("input", { type: "checkbox", onchange: (event) => { state.set = event.target.checked; draw(); } });
  body.replaceChildren(
    make("pre", {}, detail.command.join(" ") || "–"),
    make("div", { class: "tools" }, search, make("label", {}, only, " only changed settings"), note),
    make("table", { class: "config" }, make("thead", {}, make("tr", {}, ...["setting", "value", "came from", "meaning"].map((name) => make("th", {}, name)))), list));
  function draw() {
    list.replaceChildren(...detail.settings.filter(([key, value]) => `${key} ${plain(value)}`.toLowerCase().includes(state.words)).filter(([key]) => !state.set || state.origins?.[key]?.set).map(([key, value]) => {
      const told = state.origins?.[key] || {};
      return make("tr", { class: told.set ? "set" : "" }, make("td", { class: "mono" }, key), make("td", { class: "mono strong" }, plain(value)), make("td", {}, told.source || ""), make("td", { class: "faint" }, [told.doc, told.unit ? `(${told.unit})` : ""].filter(Boolean).join(" ")));
    }));
  }
  draw();
  const found = await ask("origins", { run });
  state.origins = found.keys;
  note.textContent = found.note || "";
  draw();
}

// checkpoints, videos, alerts, log

async function checkpoints(body, run, detail) {
  const size = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`);
  const rows = detail.checkpoints.map((one) => make("tr", {}, make("td", { class: "mono" }, one.name), make("td", { class: "number" }, number(one.env_steps)), make("td", { class: "number" }, number(one.updates)), make("td", { class: "number" }, size(one.bytes)),
    make("td", {}, ...one.pointers.map((name) => make("span", { class: "badge finished" }, name)))));
  const shown = detail.media.map((name) => {
    const source = `/api/media?${encoded({ run, name })}`;
    const seen = name.endsWith(".mp4") ? make("video", { src: source, controls: true, loop: true, muted: true, preload: "metadata" }) : make("img", { src: source, alt: name, loading: "lazy" });
    return make("figure", {}, seen, make("figcaption", {}, name));
  });
  body.replaceChildren(rows.length ? make("table", { class: "runs quiet" }, make("thead", {}, make("tr", {}, ...["checkpoint", "env_steps", "updates", "size", "named"].map((name, i) => make("th", { class: i > 0 && i < 4 ? "number" : "" }, name)))), make("tbody", {}, ...rows)) : empty("It has no checkpoints."),
    shown.length ? make("h2", {}, "Videos and pictures") : "", make("div", { class: "media" }, ...shown));
}

async function log(body, run, detail) {
  const alerts = detail.alerts.map((one) => make("li", { class: /^[a-z]+$/.test(one.severity || "") ? one.severity : "" }, make("b", {}, `${plain(one.severity)} `), one.line || JSON.stringify(one)));
  body.replaceChildren(make("h2", {}, "Alerts"), alerts.length ? make("ul", { class: "alerts" }, ...alerts) : empty("None."), make("h2", {}, "Log"), detail.log ? make("pre", { class: "log" }, detail.log) : empty("Nothing yet."));
}
