// A chart on two canvases: lines below, what follows the pointer above, so that moving costs nothing.
import { colours, signal } from "./app.js";

const EDGE = { left: 58, right: 12, top: 8, bottom: 22 };
let tints = new Map();  // of the look that is on: asking for a style may mean laying out the page
window.addEventListener("look", () => { tints = new Map(); });
function css(name) {
  if (!tints.has(name)) tints.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return tints.get(name);
}

const POINTS = 3000;  // of a curve that grows while it is looked at
const MOVED = 1.5;  // pixels that a curve must have grown by to be drawn again

// Charts that cannot be seen are drawn when they can.
const charts = new WeakMap();
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    chart.hidden = !entry.isIntersecting;
    if (chart.stale && !chart.hidden) chart.draw();
  }
}, { rootMargin: "100px" });
const sized = new ResizeObserver((entries) => {
  for (const entry of entries) Object.assign(charts.get(entry.target), { width: Math.round(entry.contentRect.width) }).draw();
});

export class Chart {
  // axis: how x is told; onpick(x): a click or pull chooses; onzoom([low, high] | null): a pull looks closer
  constructor({ title, height = 190, axis = "env_steps", onpick, onzoom, zero = false, foot = "" }) {
    Object.assign(this, { height, axis, onpick, onzoom, zero, lines: [], marks: [], cursor: null, domain: null });
    this.base = make("canvas", { class: "base" });
    this.over = make("canvas", { class: "over" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.name = make("span", {}, title);
    this.value = make("span", { class: "value" });
    this.area = make("div", { class: "area", style: `height:${height}px` }, this.base, this.over, this.tip);
    this.node = make("figure", { class: "chart" }, make("figcaption", {}, this.name, this.value), this.area);
    if (foot) this.node.append(make("small", {}, foot));
    this.listen();
    Object.assign(this, { width: 0, hidden: false, stale: false, inked: false });
    charts.set(this.area, this);
    sized.observe(this.area);
    seen.observe(this.area);
    window.addEventListener("look", () => this.draw(), { signal: signal() });
    signal().addEventListener("abort", () => { sized.unobserve(this.area); seen.unobserve(this.area); });
  }

  // lines: { label, x, y, colour (number), dim }
  set(lines, domain = null) {
    this.lines = lines.filter((line) => line.x.length);
    this.domain = domain;
    this.draw();
  }

  // The same lines, a little longer: drawn again once that can be seen.
  extend(lines) {
    this.lines = lines.filter((line) => line.x.length);
    const end = Math.max(...this.lines.map((line) => line.x[line.x.length - 1])), fits = this.lines.every((line) => { const y = line.y[line.y.length - 1]; return y === null || (y >= this.ys?.[0] && y <= this.ys?.[1]); });
    const drawn = this.xs && this.single === null && !this.domain && fits && this.sx(end) - this.sx(this.xs[1]) < MOVED;
    if (!drawn) this.draw(); else if (!this.hover) this.values(null, null);
  }

  listen() {
    let from = null;
    const over = this.over;
    over.addEventListener("pointerdown", (event) => {
      over.setPointerCapture(event.pointerId);
      from = this.place(event);
      if (this.onpick) this.onpick(this.back(from));
    });
    over.addEventListener("pointermove", (event) => {
      this.hover = this.place(event);
      if (from !== null && this.onpick) this.onpick(this.back(this.hover));
      this.pull = from !== null && this.onzoom && !this.onpick ? from : null;
      this.drawOver();
    });
    over.addEventListener("pointerup", (event) => {
      const ends = from === null ? [] : [from, this.place(event)].sort((a, b) => a - b);
      from = this.pull = null;
      if (this.onzoom && !this.onpick && ends.length && ends[1] - ends[0] > 6) this.onzoom(ends.map((end) => this.back(end)));
      this.drawOver();
    });
    over.addEventListener("dblclick", () => { if (this.onzoom) this.onzoom(null); });
    over.addEventListener("pointerleave", () => { this.hover = null; this.drawOver(); });
  }

  place(event) {
    const box = this.over.getBoundingClientRect();
    return Math.min(this.width - EDGE.right, Math.max(EDGE.left, event.clientX - box.left));
  }
  back(at) { return this.xs[0] + ((at - EDGE.left) / (this.width - EDGE.left - EDGE.right)) * (this.xs[1] - this.xs[0]); }
  sx(x) { return EDGE.left + ((x - this.xs[0]) / (this.xs[1] - this.xs[0])) * (this.width - EDGE.left - EDGE.right); }
  sy(y) { return this.height - EDGE.bottom - ((y - this.ys[0]) / (this.ys[1] - this.ys[0])) * (this.height - EDGE.top - EDGE.bottom); }

  fit() {
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.over]) {
      const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
      if (canvas.width === width && canvas.height === height) continue;  // a new size means new memory
      Object.assign(canvas, { width, height });
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    let low = Infinity, high = -Infinity, bottom = Infinity, top = -Infinity;
    for (const line of this.lines) {
      low = Math.min(low, line.x[0]); high = Math.max(high, line.x[line.x.length - 1]);
    }
    if (this.domain) [low, high] = this.domain;
    for (const line of this.lines) {
      for (let i = 0; i < line.x.length; i++) {
        const y = line.y[i];
        if (y === null || line.x[i] < low || line.x[i] > high) continue;
        if (y < bottom) bottom = y;
        if (y > top) top = y;
      }
    }
    if (this.zero) { bottom = Math.min(0, bottom); top = Math.max(0, top); }
    this.single = low === high ? low : null;
    this.xs = low < high ? [low, high] : [Number.isFinite(low) ? low - 1 : 0, Number.isFinite(low) ? low + 1 : 1];
    this.ys = padded(...(Number.isFinite(bottom) ? [bottom, top] : [0, 1]));
  }

  draw() {
    this.stale = this.hidden || !this.width;
    if (this.stale) return;
    this.fit();
    const pen = this.base.getContext("2d"), right = this.width - EDGE.right, bottom = this.height - EDGE.bottom;
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = css("--grid");
    pen.fillStyle = css("--faint");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const tick of ticks(...this.ys, Math.max(2, Math.round(this.height / 40)))) {
      const y = Math.round(this.sy(tick)) + 0.5;
      pen.beginPath(); pen.moveTo(EDGE.left, y); pen.lineTo(right, y); pen.stroke();
      pen.fillText(number(tick), EDGE.left - 7, y + 3.5);
    }
    pen.textAlign = "center";
    for (const tick of this.single === null ? ticks(...this.xs, Math.max(2, Math.round(this.width / 110))) : [this.single]) {
      pen.fillText(along(tick, this.axis), Math.min(right - 12, this.sx(tick)), bottom + 15);
    }
    pen.save();
    pen.beginPath(); pen.rect(EDGE.left - 4, 0, right - EDGE.left + 8, bottom + 1); pen.clip();
    const palette = colours();
    for (const line of this.lines) {
      pen.setLineDash((line.colour ?? 0) % (2 * palette.length) < palette.length ? [] : [5, 3]);  // colours come again after eight
      this.stroke(pen, line, palette[(line.colour ?? 0) % palette.length]);
    }
    pen.fillStyle = css("--bad");
    for (const x of this.marks) { pen.beginPath(); pen.arc(this.sx(x), EDGE.top + 4, 3, 0, 7); pen.fill(); }
    pen.restore();
    this.drawOver();
  }

  // Of more points than pixels only the lowest and highest in each column: the picture is the same.
  stroke(pen, line, colour) {
    pen.strokeStyle = colour;
    pen.globalAlpha = line.dim ? 0.45 : 1;
    pen.lineWidth = line.dim ? 1 : 1.6;
    pen.lineJoin = "round";
    pen.beginPath();
    const { x, y } = line, dense = x.length > 3 * this.width;
    let column = null, low = 0, high = 0, broken = true;
    for (let i = 0; i < x.length; i++) {
      if (y[i] === null || y[i] === undefined) { broken = true; continue; }
      const px = this.sx(x[i]), py = this.sy(y[i]);
      if (!dense || broken) {
        if (broken) pen.moveTo(px, py); else pen.lineTo(px, py);
        broken = false; column = Math.round(px); low = high = py;
        continue;
      }
      if (Math.round(px) === column) { low = Math.max(low, py); high = Math.min(high, py); continue; }
      pen.lineTo(column, low); pen.lineTo(column, high); pen.lineTo(px, py);
      column = Math.round(px); low = high = py;
    }
    pen.stroke();
    if (x.length === 1) { pen.fillStyle = colour; pen.beginPath(); pen.arc(this.sx(x[0]), this.sy(y[0]), 3, 0, 7); pen.fill(); }
    pen.globalAlpha = 1;
  }

  at(x) { this.cursor = x; this.drawOver(); }

  drawOver() {
    if (!this.xs) return;
    const pen = this.over.getContext("2d"), bottom = this.height - EDGE.bottom;
    if (this.inked) pen.clearRect(0, 0, this.width, this.height);
    this.inked = Boolean(this.hover) || this.cursor !== null;
    const upright = (at, colour, width) => {
      pen.strokeStyle = colour; pen.lineWidth = width;
      pen.beginPath(); pen.moveTo(at, EDGE.top); pen.lineTo(at, bottom); pen.stroke();
    };
    if (this.pull !== null && this.pull !== undefined && this.hover) {
      pen.fillStyle = css("--accent"); pen.globalAlpha = 0.14;
      pen.fillRect(Math.min(this.pull, this.hover), EDGE.top, Math.abs(this.hover - this.pull), bottom - EDGE.top);
      pen.globalAlpha = 1;
    }
    if (this.cursor !== null) upright(this.sx(this.cursor), css("--accent"), 1.5);
    const shown = this.hover ? this.back(this.hover) : this.cursor;
    this.values(pen, shown);
    if (this.hover && !this.onpick) upright(this.hover, css("--faint"), 1);
  }

  values(pen, x) {
    const clear = this.lines.filter((line) => !line.dim), palette = colours(), parts = [];
    for (const line of clear) {
      if (x === null || x === undefined) break;
      const i = nearestIn(line.x, x);
      if (line.y[i] === null || line.y[i] === undefined) continue;
      pen.fillStyle = palette[(line.colour ?? 0) % palette.length];
      pen.beginPath(); pen.arc(this.sx(line.x[i]), this.sy(line.y[i]), 3, 0, 7); pen.fill();
      parts.push([line.label, number(line.y[i]), pen.fillStyle, line.x[i]]);
    }
    if (!parts.length) {
      const last = clear.length === 1 ? clear[0].y[clear[0].y.length - 1] : null;
      const text = last === null || last === undefined ? "" : number(last);
      if (this.value.textContent !== text) this.value.textContent = text;
      return;
    }
    const where = this.hover ? make("small", {}, ` ${along(parts[0][3], this.axis)}`) : "";
    this.value.replaceChildren(...parts.slice(0, 6).map(([label, text, colour]) => make("span", { style: `color:${colour}` }, clear.length > 1 ? `${label} ${text} ` : text)), where);
  }
}

function nearestIn(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

// Of many points those that shape the picture: of each share of them the first, lowest, highest and last.
export function thinned(x, y) {
  if (x.length <= POINTS) return { x, y };
  const share = Math.ceil(x.length / (POINTS / 8)), keep = new Set();
  for (let from = 0; from < x.length; from += share) {
    const to = Math.min(x.length, from + share);
    let low = from, high = from;
    for (let i = from; i < to; i++) { if (y[i] < y[low]) low = i; if (y[i] > y[high]) high = i; }
    [from, low, high, to - 1].forEach((i) => keep.add(i));
  }
  const order = [...keep].sort((a, b) => a - b);
  return { x: order.map((i) => x[i]), y: order.map((i) => y[i]) };
}

// An exponential mean that starts without a bias; 0 changes nothing.
export function smoothed(y, weight) {
  if (!weight) return y;
  let mean = 0, known = 0;
  return y.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    known = weight * known + 1 - weight;
    return mean / known;
  });
}

export function spark(canvas, y, colour) {
  const ratio = window.devicePixelRatio || 1, width = 96, height = 22;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (!y || y.length < 2) return;
  const low = Math.min(...y), high = Math.max(...y), span = high - low || 1;
  pen.strokeStyle = colour; pen.lineWidth = 1.4; pen.lineJoin = "round";
  pen.beginPath();
  y.forEach((value, i) => pen.lineTo(2 + (i / (y.length - 1)) * (width - 4), height - 3 - ((value - low) / span) * (height - 6)));
  pen.stroke();
}
