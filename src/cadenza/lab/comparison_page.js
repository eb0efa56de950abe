// Runs beside each other: curves, scores and profiles drawn as SVG. For `cadenza compare --plot FILE.html` and the inspector.
"use strict";

// Outlines around the origin, by the names of markers in matplotlib.
const MARKERS = {
  o: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", s: "M-4-4h8v8h-8z", "^": "M0-5L5 4h-10z", D: "M0-5.5L5.5 0L0 5.5L-5.5 0z", v: "M0 5L5-4h-10z",
  "*": "M0-6L1.4-1.9H5.7L2.3.7L3.5 4.9L0 2.4L-3.5 4.9L-2.3.7L-5.7-1.9H-1.4z",
};

function showComparison(data, page) {
  const view = { metric: data.metrics[0], axis: data.x, seeds: true, hidden: new Set(), zoom: {} };
  const colour = Object.fromEntries(data.labels.map((entry) => [entry.label, entry.colour]));
  const dash = Object.fromEntries(data.labels.map((entry) => [entry.label, entry.dash]));
  const marker = Object.fromEntries(data.labels.map((entry) => [entry.label, entry.marker]));
  const W = Math.max(320, Math.min(640, page.clientWidth || 640)), H = W < 500 ? 280 : 360, EDGE = { left: 62, right: 14, top: 10, bottom: 44 };

  // A frame with axes; to(x, y) turns values into places on the picture.
  function frame(domain, range, names, axis) {
    const sx = (x) => EDGE.left + ((x - domain[0]) / (domain[1] - domain[0])) * (W - EDGE.left - EDGE.right);
    const sy = (y) => H - EDGE.bottom - ((y - range[0]) / (range[1] - range[0])) * (H - EDGE.top - EDGE.bottom);
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    for (const tick of ticks(...range, 6)) {
      svg.append(make("line", { x1: EDGE.left, x2: W - EDGE.right, y1: sy(tick), y2: sy(tick), class: "grid" }));
      svg.append(make("text", { x: EDGE.left - 8, y: sy(tick) + 4, "text-anchor": "end" }, number(tick)));
    }
    for (const tick of ticks(...domain, 6)) {
      svg.append(make("line", { x1: sx(tick), x2: sx(tick), y1: EDGE.top, y2: H - EDGE.bottom, class: "grid" }));
      svg.append(make("text", { x: sx(tick), y: H - EDGE.bottom + 17, "text-anchor": "middle" }, along(tick, axis)));
    }
    svg.append(make("text", { x: (W + EDGE.left) / 2, y: H - 8, "text-anchor": "middle" }, names[0]));
    svg.append(make("text", { transform: `translate(14 ${H / 2}) rotate(-90)`, "text-anchor": "middle" }, names[1]));
    return { svg, sx, sy, back: (place) => domain[0] + ((place - EDGE.left) / (W - EDGE.left - EDGE.right)) * (domain[1] - domain[0]) };
  }

  // What is put into it is cut off at the axes.
  function within() {
    const width = W - EDGE.left - EDGE.right, height = H - EDGE.bottom;
    return make("svg", { x: EDGE.left, y: 0, width, height, viewBox: `${EDGE.left} 0 ${width} ${height}` });
  }

  const line = (f, xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${f.sx(x).toFixed(1)} ${f.sy(ys[i]).toFixed(1)}`).join("");
  const band = (f, xs, low, high) => line(f, xs, high) + line(f, [...xs].reverse(), [...low].reverse()).replace("M", "L") + "Z";
  const dot = (label, x, y, opacity = 1) => make("path", { d: MARKERS[marker[label]], transform: `translate(${x} ${y})`, fill: colour[label], opacity });
  const shown = (series) => series.filter((one) => !view.hidden.has(one.label));

  // Values under the pointer, and a stretch pulled with it to look closer.
  function explore(figure, f, key, lines, title) {
    const tip = make("div", { class: "tip", hidden: true });
    const mark = make("line", { y1: EDGE.top, y2: H - EDGE.bottom, class: "mark", visibility: "hidden" });
    const pull = make("rect", { y: EDGE.top, height: H - EDGE.top - EDGE.bottom, class: "pull", visibility: "hidden" });
    let from = null;
    const place = (event) => {
      const box = f.svg.getBoundingClientRect();
      return Math.min(W - EDGE.right, Math.max(EDGE.left, ((event.clientX - box.left) / box.width) * W));
    };
    f.svg.append(mark, pull);
    f.svg.addEventListener("pointermove", (event) => {
      const at = place(event), x = f.back(at), box = f.svg.getBoundingClientRect();
      if (from !== null) {
        pull.setAttribute("x", Math.min(from, at));
        pull.setAttribute("width", Math.abs(at - from));
        pull.setAttribute("visibility", "visible");
      }
      for (const [name, value] of [["x1", at], ["x2", at], ["visibility", "visible"]]) mark.setAttribute(name, value);
      tip.replaceChildren(make("b", {}, title(x)));
      for (const entry of lines) {
        if (!entry.x.length || x < entry.x[0] || x > entry.x[entry.x.length - 1]) continue;
        const i = nearest(entry.x, x);
        const text = ` ${entry.label}: ${number(entry.y[i])} [${number(entry.low[i])}, ${number(entry.high[i])}]`;
        tip.append(make("br"), make("span", { style: `color:${colour[entry.label]}` }, "●"), text);
      }
      tip.hidden = false;
      const left = (at / W) * box.width;
      tip.style.top = `${event.clientY - figure.getBoundingClientRect().top + 14}px`;
      tip.style.left = left < box.width / 2 ? `${left + 14}px` : "auto";
      tip.style.right = left < box.width / 2 ? "auto" : `${box.width - left + 14}px`;
    });
    f.svg.addEventListener("pointerdown", (event) => { from = place(event); });
    f.svg.addEventListener("pointerup", (event) => {
      const ends = from === null ? [] : [from, place(event)].sort((a, b) => a - b);
      from = null;
      if (ends.length && ends[1] - ends[0] > 8) { view.zoom[key] = ends.map(f.back); render(); }
      else pull.setAttribute("visibility", "hidden");
    });
    f.svg.addEventListener("dblclick", () => { delete view.zoom[key]; render(); });
    f.svg.addEventListener("pointerleave", () => { tip.hidden = true; from = null; mark.setAttribute("visibility", "hidden"); });
    figure.append(tip);
  }

  function curvePanel(environment) {
    const key = `${environment} ${view.axis}`;
    const series = shown(data.series).filter((one) => one.environment === environment);
    const lines = series.map((one) => ({ label: one.label, ...(one.curves[view.metric] || {})[view.axis] })).filter((one) => one.x);
    const figure = make("figure", {}, make("figcaption", {}, `${environment}: IQM over seeds, 95 % interval${view.seeds && lines.some((one) => one.seeds.length > 1) ? ", every seed faint" : ""}`));
    const every = lines.flatMap((one) => [one, ...(view.seeds ? one.seeds : [])]);
    const xs = every.flatMap((one) => one.x);
    if (!xs.length) return figure;
    const domain = view.zoom[key] || [Math.min(0, ends(xs)[0]), ends(xs)[1] || 1];
    const inside = (one, ys) => ys.filter((_, i) => one.x[i] >= domain[0] && one.x[i] <= domain[1]);
    const ys = every.flatMap((one) => [one.y, one.low || [], one.high || []].flatMap((part) => inside(one, part)));
    const f = frame(domain, padded(...ends(ys)), [data.axes[view.axis], view.metric], view.axis);
    const clip = within(), dots = []; // dots on an edge are not cut off
    for (const one of lines) {
      const stroke = colour[one.label];
      const mark = ({ x, y }, opacity) => { if (x.length === 1 && inside({ x }, y).length) dots.push(dot(one.label, f.sx(x[0]), f.sy(y[0]), opacity)); };
      if (view.seeds && one.seeds.length > 1) {
        for (const seed of one.seeds) {
          clip.append(make("path", { d: line(f, seed.x, seed.y), fill: "none", stroke, opacity: 0.3 }));
          mark(seed, 0.3);
        }
      }
      clip.append(make("path", { d: band(f, one.x, one.low, one.high), fill: stroke, opacity: 0.18 }));
      clip.append(make("path", { d: line(f, one.x, one.y), fill: "none", stroke, "stroke-width": 2.5, "stroke-dasharray": dash[one.label] }));
      mark(one, 1);
    }
    f.svg.append(clip, ...dots);
    figure.append(f.svg);
    explore(figure, f, key, lines, (x) => `${data.axes[view.axis]} ${along(x, view.axis)}`);
    return figure;
  }

  function profilePanel() {
    const found = data.profiles[view.metric];
    const figure = make("figure", {}, make("figcaption", {}, "Performance profile, 95 % interval"));
    const scaled = data.environments.length > 1 ? ", scaled per environment" : "";
    const domain = view.zoom.profile || [found.x[0], found.x[found.x.length - 1]];
    const f = frame(domain, [0, 1.02], [`threshold t of ${view.metric}${scaled}`, "runs above t"]);
    const lines = Object.entries(found.lines).filter(([label]) => !view.hidden.has(label)).map(([label, rest]) => ({ label, x: found.x, ...rest }));
    const clip = within();
    for (const one of lines) {
      clip.append(make("path", { d: band(f, one.x, one.low, one.high), fill: colour[one.label], opacity: 0.15 }));
      clip.append(make("path", { d: line(f, one.x, one.y), fill: "none", stroke: colour[one.label], "stroke-width": 2.2, "stroke-dasharray": dash[one.label] }));
    }
    f.svg.append(clip);
    figure.append(f.svg);
    explore(figure, f, "profile", lines, (x) => `above ${number(x)}`);
    return figure;
  }

  function table(head, rows) {
    const top = make("tr", {}, ...head.map((cell) => make("th", {}, cell)));
    const lines = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))));
    return make("div", { class: "scroll" }, make("table", {}, top, ...lines));
  }

  const interval = (ends) => `[${number(ends[0])}, ${number(ends[1])}]`;
  const chance = (found) => (found ? `${found.value.toFixed(2)} [${found.interval.map((end) => end.toFixed(2)).join(", ")}]` : "");

  function scoreTable(series, places, more) {
    const head = [...places, view.metric, "95 % interval", ...more, `P(above ${data.labels[0].label})`];
    return table(head, series.map((one) => {
      const score = one.scores[view.metric];
      const place = places.map((name) => ({ environment: one.environment, runs: one.label, seeds: String(score ? (score.values || []).filter((value) => value !== null).length : 0) })[name]);
      if (!score) return [...place, "–"];
      return [...place, number(score.iqm), interval(score.interval), ...more.map((name) => number(score[name])), chance(score.improvement)];
    }));
  }

  // Whether the curve of a label is a single point somewhere, which shows no strokes.
  const single = (label) => data.series.some((one) => one.label === label && ((one.curves[view.metric] || {})[view.axis] || { x: [] }).x.length === 1);

  function controls() {
    const choice = (name, options, value, then) => make("label", {}, `${name} `, make("select", { onchange: (event) => { then(event.target.value); render(); } },
      ...Object.entries(options).map(([key, text]) => make("option", { value: key, selected: key === value }, text))));
    const metrics = Object.fromEntries(data.metrics.map((metric) => [metric, metric]));
    const seeds = make("input", { type: "checkbox", checked: view.seeds, onchange: (event) => { view.seeds = event.target.checked; render(); } });
    const legend = make("span", { class: "legend" }, ...data.labels.map(({ label }) => make("button", {
      class: view.hidden.has(label) ? "off" : "", title: "show or hide",
      onclick: () => { view.hidden.has(label) ? view.hidden.delete(label) : view.hidden.add(label); render(); },
    }, make("i", {}, make("svg", { viewBox: "0 0 44 12" }, make("line", { x2: 44, y1: 6, y2: 6, stroke: colour[label], "stroke-width": 2.5, "stroke-dasharray": dash[label] }), ...(single(label) ? [dot(label, 22, 6)] : []))), label)));
    const reset = make("button", { onclick: () => { view.zoom = {}; render(); }, hidden: !Object.keys(view.zoom).length }, "whole range");
    return make("div", { class: "controls" }, legend, choice("metric", metrics, view.metric, (key) => { view.metric = key; }),
      choice("along", data.axes, view.axis, (key) => { view.axis = key; }), make("label", {}, seeds, " every seed"), reset);
  }

  function render() {
    const differing = Object.entries(data.differences);
    const text = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
    page.replaceChildren(
      controls(),
      make("div", { class: "panels" }, ...data.environments.map(curvePanel), profilePanel()),
      make("p", {}, "Point at a curve for its values; drag to zoom, double-click to reset."),
      make("h2", {}, data.score === "final" ? "Final scores" : data.score === "best" ? "Best scores" : `Scores at step ${data.score}`),
      scoreTable(data.series, ["environment", "runs", "seeds"], ["min", "max"]),
      ...(data.overall ? [make("h2", {}, "All environments, scaled from the lowest score there (0) to the highest (1)"), scoreTable(data.overall, ["runs"], [])] : []),
      ...(differing.length ? [make("h2", {}, "Settings that differ"), table(["setting", ...Object.keys(differing[0][1])],
        differing.map(([key, values]) => [key, ...Object.values(values).map(text)]))] : []),
      make("h2", {}, "Runs"),
      table(["runs", "seed", "run", "env_steps", view.metric], data.series.flatMap((one) => one.runs.map((run, i) =>
        [one.label, String(one.seeds[i]), run, number(one.env_steps[i]), number((one.scores[view.metric] || { values: [] }).values[i])]))),
      ...data.notes.map((note) => make("p", { class: "note" }, note)),
    );
  }
  render();
}
