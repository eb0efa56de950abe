// What pages draw with: elements, numbers as people read them, ticks of an axis. Texts go in as texts, never as HTML.
"use strict";

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "g"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const number = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  if (size && size < 1e-4) return value.toExponential(3).replace(/\.?0*e/, "e");
  return String(+value.toPrecision(4));
};
const clock = (seconds) => {
  const whole = Math.round(seconds), two = (part) => String(part).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
};
const along = (value, axis) => (axis === "time" ? clock(value) : number(value));

function ticks(low, high, count) {
  const raw = (high - low) / count;
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw) || raw;
  const first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, Math.min(last - first, 4 * count) + 1) }, (_, i) => +((first + i) * step).toPrecision(12));
}

// Values that differ by no more than rounding are one value: an axis between them would have no ticks.
function padded(low, high) {
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) return [low - 1, high + 1];
  return [low - 0.04 * (high - low), high + 0.04 * (high - low)];
}

// Lowest and highest; Math.min(...values) has a limit, which many seeds reach.
const ends = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

function nearest(xs, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}
