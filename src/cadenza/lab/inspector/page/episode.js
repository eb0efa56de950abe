// An episode again, step by step: the picture, what the agents saw, thought and did, and plots that follow the step.
import { ask, colours, empty, encoded, go, kept, keep, onKeys, place, poll, report, signal } from "./app.js";
import { Chart } from "./chart.js";

const WINDOW = 200;  // steps whose details are asked for at once
const AHEAD = 40;  // steps whose pictures are asked for while it plays
const MOST_LINES = 12;  // agents whose curves are drawn together
const SPEEDS = [0.25, 0.5, 1, 2, 4];

export async function episodeView(view, run, number_, query) {
  const detail = await ask("run", { run });
  const offered = ["best", "last"].filter((name) => detail.checkpoints.some((one) => one.pointers.includes(name)));
  const checkpoint = query.get("checkpoint") ?? offered[0] ?? "";
  const which = { run, episode: number_, checkpoint };
  document.title = `episode ${number_} of ${run}`;
  view.replaceChildren(heading(run, number_, offered, detail, checkpoint, query), empty("playing it again …"));
  const found = await opened(which, (words) => { view.lastChild.textContent = words; });
  if (found.failed && !found.facts) { view.lastChild.textContent = found.failed; return; }
  const player = new Player(which, found, Number(query.get("step")) || 0);
  view.lastChild.replaceWith(player.node);
  player.show(player.step);
  onKeys({
    ArrowRight: { say: "next step", shown: "→", does: () => player.move(1) }, ArrowLeft: { say: "step before", shown: "←", does: () => player.move(-1) },
    "Shift+ArrowRight": { say: "ten steps on", shown: "Shift →", does: () => player.move(10) }, "Shift+ArrowLeft": { say: "ten steps back", shown: "Shift ←", does: () => player.move(-10) },
    Space: { say: "play or pause", does: () => player.toggle() }, Home: { say: "first step", does: () => player.show(0) }, End: { say: "last step", does: () => player.show(player.length) },
    j: { say: "next episode", does: () => go(place.episode(run, number_ + 1, { checkpoint })) }, k: { say: "episode before", does: () => number_ && go(place.episode(run, number_ - 1, { checkpoint })) },
    a: { say: "next agent", does: () => player.nextAgent() }, u: { say: "all episodes", does: () => go(place.run(run, "episodes")) },
  });
  if (found.stage !== "ready" && found.stage !== "closed") await player.follow();
}

// Asked again while a child starts, or while others are still being played.
async function opened(which, tell) {
  const alive = signal();
  for (;;) {
    const found = await ask("episode", which);
    alive.throwIfAborted();
    if (found.facts || found.failed) return found;
    tell(found.stage === "waiting" ? "other episodes are being played again: this one comes when one of them is done …" : "playing it again …");
    await new Promise((done) => setTimeout(done, 300));
    alive.throwIfAborted();
  }
}

function heading(run, k, offered, detail, checkpoint, query) {
  const choose = make("select", { "aria-label": "checkpoint", onchange: (event) => go(place.episode(run, k, { checkpoint: event.target.value, step: query.get("step") })) },
    ...[...offered, ...detail.checkpoints.map((one) => one.name)].map((name) => make("option", { value: name, selected: name === checkpoint }, name)), make("option", { value: "", selected: !checkpoint }, "nobody"));
  return make("div", { class: "title tools" }, make("a", { class: "faint", href: place.run(run, "episodes") }, "‹ episodes"), make("h1", {}, `Episode ${k}`), make("a", { class: "faint", href: place.run(run) }, run),
    make("span", { class: "space" }), make("label", { class: "faint", title: "whose probabilities, values and advantages are shown" }, "judged by ", choose));
}

class Player {
  constructor(which, found, step) {
    Object.assign(this, { which, found, facts: found.facts, length: found.facts.length, step: Math.min(step, found.facts.length), details: new Map(), pictures: new Map(), playing: false, speed: kept("speed", 1), dreamt: null, alive: signal() });
    this.agents = Object.entries(this.facts.groups).flatMap(([group, one]) => one.agents.map((name, index) => ({ group, name, index, label: one.agents.length > 1 || Object.keys(this.facts.groups).length > 1 ? name : group })));
    this.sees = Object.values(this.facts.groups).some((one) => one.sees.some((shape) => shape.length >= 2 && Math.max(...shape) >= 8));
    this.at = 0;
    this.image = make("img", { alt: "the environment at this step" });
    this.seen = make("img", { class: "seen", alt: "what the agent sees", hidden: true });
    this.noPicture = make("span");
    this.slider = make("input", { type: "range", min: 0, max: this.length, value: this.step, "aria-label": "step", oninput: (event) => { this.pause(); this.show(Number(event.target.value)); } });
    this.counter = make("span", { class: "number" });
    this.button = make("button", { title: "play or pause (Space)", "aria-label": "play or pause", onclick: () => this.toggle() }, "▶");
    const speed = make("select", { "aria-label": "speed", onchange: (event) => { this.speed = Number(event.target.value); keep("speed", this.speed); } }, ...SPEEDS.map((one) => make("option", { value: one, selected: one === this.speed }, `${one}×`)));
    this.figures = make("div", { class: "figures" });
    this.status = make("p", { class: "faint" });
    this.picks = make("div", { class: "agents" });
    this.policy = make("div", { class: "card" });
    this.observation = make("div", { class: "card" });
    this.team = make("div", { class: "card", hidden: this.agents.length < 2 });
    this.dream = make("div", { class: "card", hidden: true });
    this.legend = make("div", { class: "legend" });
    this.strips = make("div", { class: "strips" });
    window.addEventListener("look", () => this.drawLegend(), { signal: signal() });
    const pick = (x) => { this.pause(); this.show(Math.round(x)); };
    this.charts = Object.fromEntries(["reward", "return so far", "value", "advantage"].map((name) => [name, new Chart({ title: name, axis: "step", height: name === "reward" ? 110 : 120, onpick: pick, zero: name === "reward" || name === "advantage" })]));
    const steps = [["«", "first step (Home)", () => this.show(0)], ["‹", "step before (←)", () => this.move(-1)]], on = [["›", "next step (→)", () => this.move(1)], ["»", "last step (End)", () => this.show(this.length)]];
    const press = ([text, title, does]) => make("button", { title, "aria-label": title, onclick: does }, text);
    this.node = make("div", {}, this.status, make("div", { class: "stage" },
      make("div", {}, make("div", { class: "card" }, make("div", { class: "screen" }, this.image, this.seen, this.noPicture),
        make("div", { class: "transport" }, ...steps.map(press), this.button, ...on.map(press), this.slider, this.counter, speed), this.figures), this.team),
      make("div", {}, this.picks, this.policy, this.observation, this.dream)), this.legend, this.strips);
    this.screen = this.image.parentNode;
    this.drawAgents();
    this.drawSeries();
    this.drawStatus();
  }

  get showsOthers() { return this.agents.length > 1 && this.agents.length <= MOST_LINES; }
  get agent() { return this.agents[this.at]; }
  series(name, agent = this.agent) { return (this.found.series[agent.group]?.[name] || []).map((values) => (values ? values[agent.index] ?? null : null)); }

  // until the child has told everything
  follow() {
    if (this.following) return;
    this.following = true;
    poll(400, async () => {
      if (this.found.stage === "ready" || this.found.stage === "closed") return;
      const { done, judged, stage } = this.found, now = await ask("episode", { ...this.which, progress: 1 });
      const grew = now.done !== done || now.judged !== judged || now.stage !== stage;
      Object.assign(this.found, now);
      if (!grew || now.stage === "closed") { this.drawStatus(); return; }  // closed: it begins again when somebody moves on
      if (now.done > this.length || now.stage !== "playing") Object.assign(this.found, await ask("episode", this.which));
      this.details.clear();
      this.drawSeries();
      this.drawStatus();
      this.show(this.step);
    });
  }

  // It was closed to make room for others, and is looked at again.
  async again() {
    if (this.opening || this.alive.aborted) return;
    this.opening = true;
    try {
      const found = await opened(this.which, (words) => { this.status.textContent = words; });
      delete this.found.failed;
      Object.assign(this.found, found, { facts: this.facts });
      this.details.clear();
      this.dreamt = null;
      this.drawStatus();
      this.show(this.step);
      this.follow();
    } catch (problem) { report(problem); } finally { this.opening = false; }
  }

  drawStatus() {
    const { stage, done, judged, identical, failed, notes, checkpoint, terminated, truncated } = this.found, parts = [];
    if (failed) parts.push(failed);
    else if (stage === "closed") parts.push("closed to make room for other episodes: it is played again when you move on");
    if (stage === "playing") parts.push(`playing it again: ${Math.min(done, this.length)} of ${this.length} steps`);
    if (stage === "judging") parts.push(`the policy looks at it: ${Math.min(judged, this.length)} of ${this.length} steps`);
    if (identical === true) parts.push("played again from its seed and actions: the return is the recorded one, to the last bit");
    if (identical === false) parts.push("played again, it did not come out as it was recorded");
    if (terminated || truncated) parts.push(terminated ? "it ended" : "it reached the time limit");
    if (checkpoint) parts.push(`judged by ${checkpoint}`);
    this.status.textContent = [...parts, ...(notes || [])].join(" · ");
    this.status.className = failed || identical === false ? "note" : "faint";
    this.dream.hidden = !this.found.imagines;
  }

  drawAgents() {
    const gone = (agent) => this.details.get(this.step)?.step[agent.group]?.active?.[agent.index] === false;
    this.picks.hidden = this.agents.length < 2;
    this.picks.replaceChildren(...(this.agents.length > 1 ? this.agents.map((agent, i) => make("button", { class: [i === this.at ? "here" : "", gone(agent) ? "gone" : ""].join(" "), title: agent.group, onclick: () => this.pick(i) }, agent.label)) : []));
  }
  pick(i) { this.at = i; this.drawAgents(); this.drawSeries(); this.show(this.step); }
  nextAgent() { this.pick((this.at + 1) % this.agents.length); }

  drawSeries() {
    const x = Array.from({ length: this.length + 1 }, (_, i) => i), shown = [];
    const { reward_scale: scale, trace } = this.found.credit?.[this.agent.group] || {};
    for (const [name, chart] of Object.entries(this.charts)) {
      const of = (agent) => (name === "return so far" ? sums(this.series("reward", agent)) : this.series(name, agent));
      const others = this.showsOthers ? this.agents.map((agent, i) => ({ agent, i })).filter(({ i }) => i !== this.at) : [];
      const lines = [...others.map(({ agent, i }) => ({ label: agent.label, y: of(agent), colour: i, dim: true })), { label: this.agent.label, y: of(this.agent), colour: this.at }];
      const told = lines.filter((line) => line.y.some((value) => value !== null)).map((line) => ({ ...line, x: x.slice(0, line.y.length) }));
      if (!told.length && name !== "reward") continue;
      if (name === "reward" && this.series("expected").length) told.push({ label: "expected", y: this.series("expected").slice(1), x: x.slice(0, this.series("expected").length - 1), colour: this.agents.length });  // told on arriving at the next step
      chart.name.textContent = name === "value" && scale && scale !== 1 ? `value (of rewards divided by ${number(scale)})` : name === "advantage" ? (trace ? `advantage (GAE, λ ${trace})` : "advantage (one step)") : name;
      chart.set(told, [0, this.length]);
      shown.push(chart.node);
    }
    if (shown.length !== this.strips.children.length) this.strips.replaceChildren(...shown);
    this.drawLegend();
  }
  // Whose line is whose: the chosen agent's is strong, those of the others are faint.
  drawLegend() {
    const palette = colours(), stroke = (i) => `border-top: ${i === this.at ? 3 : 1}px ${i % (2 * palette.length) < palette.length ? "solid" : "dashed"} ${palette[i % palette.length]}`;
    this.legend.replaceChildren(...(this.showsOthers ? this.agents.map((agent, i) => make("button", { class: i === this.at ? "strong" : "faint", title: agent.group, onclick: () => this.pick(i) }, make("i", { style: stroke(i) }), agent.label)) : []));
  }

  move(by) { this.pause(); this.show(this.step + by); }
  toggle() { if (this.playing) this.pause(); else this.play(); }
  pause() { this.playing = false; this.button.textContent = "▶"; }
  play() {
    if (this.step >= this.length) this.step = 0;
    this.playing = true;
    this.button.textContent = "❚❚";
    let from = performance.now(), step = this.step;
    const turn = (now) => {
      if (!this.playing || this.alive.aborted) return;
      const next = step + Math.floor(((now - from) / 1000) * this.facts.fps * this.speed);
      if (next > this.step) {
        const ready = Math.min(next, this.length, this.reach());  // pictures come first
        if (ready < next) { from = now; step = ready; }
        if (ready > this.step) this.show(ready); else this.ahead();
      }
      if (this.step >= this.length) this.pause(); else requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  }
  // how far pictures are there already, or the end where there are none
  reach() {
    if (this.blind) return this.length;
    let step = this.step;
    while (step < this.length && step < this.step + 30 && this.pictures.has(step + 1)) step++;
    return this.found.stage === "ready" ? step : this.length;
  }

  show(step) {
    this.step = Math.max(0, Math.min(this.length, step));
    this.leave();
    this.slider.value = this.step;
    this.counter.textContent = `${this.step} / ${this.length}`;
    for (const chart of Object.values(this.charts)) chart.at(this.step);
    this.drawPicture();
    this.drawStep();
    clearTimeout(this.settled);
    this.settled = setTimeout(() => this.settle(), 160);
  }
  settle() {
    if (this.alive.aborted) return;
    history.replaceState(null, "", place.episode(this.which.run, this.which.episode, { checkpoint: this.which.checkpoint, step: this.step }));
    if (!this.playing) this.ahead();
    if (this.found.imagines && this.found.stage === "ready" && !this.playing) this.drawDream().catch(report);
  }

  // pictures: the nearest one that the server has until the step stays; then, and while playing, the right one and those ahead
  async fetchPicture(step, near) {
    const signal = near ? this.alive : this.waitFor(step);
    const answer = await fetch(`/api/picture?${encoded({ ...this.which, what: "frame", step, near: near ? 1 : undefined })}`, { signal }).catch(() => null);
    if (answer?.status === 410) this.again();
    if (!answer || answer.status !== 200) return null;
    return { address: URL.createObjectURL(await answer.blob()), step: Number(answer.headers.get("X-Step")) };
  }
  // A picture that must be made may take long: whoever has jumped elsewhere does not wait for it.
  waitFor(step) {
    if (!this.awaited || this.awaited.stop.signal.aborted) this.awaited = { stop: new AbortController() };
    this.awaited.step = step;
    return AbortSignal.any([this.alive, this.awaited.stop.signal]);
  }
  leave() { if (this.awaited && (this.awaited.step < this.step || this.awaited.step > this.step + AHEAD)) this.awaited.stop.abort(); }
  async nearPicture() {
    if (this.looking || this.blind) return;
    this.looking = true;
    const step = this.step, found = await this.fetchPicture(step, true);
    this.looking = false;
    if (found && found.step === step) this.remember(step, found.address);
    if (found && (this.step === step || !this.pictures.has(this.step))) this.put(found.address);
    if (this.step !== step && !this.pictures.has(this.step)) this.nearPicture();
  }
  async ahead() {
    if (this.filling || this.blind || this.found.stage !== "ready") return;
    this.filling = true;
    for (;;) {
      let step = this.step;
      while (step <= this.length && this.pictures.has(step)) step++;
      if (step > Math.min(this.length, this.step + (this.playing ? AHEAD : 15)) || this.alive.aborted) break;
      const found = await this.fetchPicture(step, false);
      if (!found) break;
      if (found.step === step) this.remember(step, found.address); else break;
      if (this.step === step) this.put(found.address);
    }
    this.filling = false;
  }
  remember(step, address) {
    this.pictures.set(step, address);
    if (this.pictures.size > 1200) for (const [old, gone] of this.pictures) if (Math.abs(old - this.step) > 400) { URL.revokeObjectURL(gone); this.pictures.delete(old); }
  }
  put(address) {
    this.shown = true;
    this.noPicture.textContent = "";
    this.image.hidden = false;
    this.image.onload = () => this.image.classList.toggle("small", Math.max(this.image.naturalWidth, this.image.naturalHeight) <= 256);
    this.image.src = address;
  }
  drawPicture() {
    this.blind = this.found.stage !== "starting" && (this.found.notes || []).some((note) => /render/.test(note));
    if (this.blind) { this.image.hidden = true; this.noPicture.textContent = this.sees ? "" : "no pictures: this environment draws none"; }
    const known = this.pictures.get(this.step);
    if (known) this.put(known); else this.nearPicture();
    if (this.playing) this.ahead();
    this.drawSeen().catch(() => {});
  }
  async drawSeen() {
    if (!this.sees || this.seeing) return;
    this.seeing = true;
    const step = this.step;
    try { await this.fetchSeen(step); } catch { /* left for another step */ } finally { this.seeing = false; }
    if (this.step !== step) await this.drawSeen();
  }
  async fetchSeen(step) {
    const near = this.found.stage !== "ready" || this.playing;
    const answer = await fetch(`/api/picture?${encoded({ ...this.which, what: "seen", step, near: near ? 1 : undefined })}`, { signal: near ? this.alive : this.waitFor(step) });
    if (answer.status !== 200 || this.step !== step) return;
    this.seen.hidden = false;
    this.seen.classList.add("small");
    this.seen.src = URL.createObjectURL(await answer.blob());
    this.seen.onload = () => URL.revokeObjectURL(this.seen.src);
  }

  // numbers of the step
  async drawStep() {
    const now = this.details.get(this.step);
    if (now) { this.drawNumbers(now); return; }
    const begin = Math.floor(this.step / WINDOW) * WINDOW, wanted = this.step;
    if (this.asking === begin) return;
    this.asking = begin;
    try {
      const found = await ask("steps", { ...this.which, begin, count: WINDOW });
      found.steps.forEach((step, i) => this.details.set(begin + i, { step, opinion: found.opinions[i] || {} }));
    } catch (problem) { if (problem.status === 410) this.again(); else report(problem); }
    this.asking = null;
    const got = this.details.get(this.step);
    if (got) this.drawNumbers(got); else if (wanted !== this.step) this.drawStep();
  }

  drawNumbers({ step, opinion }) {
    const { group, index } = this.agent, own = step[group] || {}, thought = opinion[group] || {}, space = this.facts.groups[group].action;
    const fact = (name, value) => make("div", { class: "fact" }, make("small", {}, name), make("b", {}, value));
    const reward = own.reward?.[index], all = this.agents.length > 1;
    const total = this.agents.reduce((sum, agent) => sum + this.series("reward", agent).slice(0, this.step + 1).reduce((a, b) => a + (b ?? 0), 0), 0);
    const advantage = this.series("advantage")[this.step];
    this.figures.replaceChildren(fact("action", actionText(own.action?.[index], space)), fact("reward", number(reward)), fact(all ? "return of all so far" : "return so far", number(total)), fact("value", number(thought.value?.[index])), fact("advantage", number(advantage)));
    this.drawPolicy(own, thought, index, space);
    this.drawObservation(own.obs?.[index] || [], group, index);
    if (all) this.drawTeam(step, opinion);
    this.drawAgents();
  }

  drawPolicy(own, thought, index, space) {
    const taken = own.action?.[index], rows = [];
    if (thought.probs) {
      const probabilities = thought.probs[index];
      const names = choices(space, probabilities.length), done = takenAt(space, taken);
      probabilities.forEach((p, i) => rows.push(row(names[i], bar(0, p, done.has(i)), p.toFixed(3), done.has(i))));
    } else if (thought.mean) {
      thought.mean[index].forEach((mean, i) => {
        const std = thought.std[index][i], low = space.low?.[i] ?? -1, high = space.high?.[i] ?? 1, [a, b] = low < high ? [low, high] : [Math.min(-1, mean - 2 * std), Math.max(1, mean + 2 * std)];
        const part = (x) => Math.max(0, Math.min(1, (x - a) / (b - a)));
        const track = bar(part(mean - std), part(mean + std), false);
        if (taken) track.append(make("b", { style: `left:calc(${100 * part(taken[i])}% - 1px)`, title: `taken: ${number(taken[i])}` }));
        rows.push(row(named(space, i), track, `${number(mean)} ± ${number(std)}`, false));
      });
    }
    if (thought.q) {
      const values = thought.q[index], low = Math.min(...values), high = Math.max(...values), done = takenAt(space, taken);
      const names = choices(space, values.length);
      values.forEach((value, i) => rows.push(row(thought.probs ? `Q ${names[i]}` : names[i], bar(0, high > low ? 0.06 + 0.94 * ((value - low) / (high - low)) : 1, done.has(i)), number(value), done.has(i))));
    }
    const title = thought.probs ? "Action probabilities" : thought.mean ? "Action means ± deviation" : thought.q ? "Action values" : "Action";
    const nothing = this.found.stage === "judging" || this.found.stage === "playing" ? "the policy has not looked at this step yet" : "this policy tells no probabilities or means";
    this.policy.replaceChildren(make("h2", {}, title, make("small", {}, taken ? `taken: ${actionText(taken, space)}` : "the end: nothing is done")), rows.length ? make("div", { class: "rows" }, ...rows.flat()) : make("p", { class: "faint" }, nothing));
  }

  drawObservation(values, group, index) {
    const key = `${group} ${index}`;
    this.ranges ||= new Map();
    const range = this.ranges.get(key) || values.map(() => [Infinity, -Infinity]);
    for (const { step } of this.details.values()) (step[group]?.obs?.[index] || []).forEach((value, i) => { if (value < range[i][0]) range[i][0] = value; if (value > range[i][1]) range[i][1] = value; });
    this.ranges.set(key, range);
    const { sees, keys, numbers } = this.facts.groups[group];
    const shapes = sees.map((shape, i) => `${keys[i]} ${shape.join("×") || "1"}`.trim()).join(", ");
    // one zero for all: at the left, or in the middle where any number of the episode is negative
    const zero = range.some(([low]) => low < 0) ? 0.5 : 0;
    const rows = values.map((value, i) => {
      const part = zero + (value / (Math.max(-range[i][0], range[i][1]) || 1)) * (1 - zero), track = bar(Math.min(zero, part), Math.max(zero, part), true);
      if (zero) track.append(make("b", { class: "zero", style: `left:${100 * zero}%`, title: "0" }));
      return row(numbers[i], track, number(value), false);
    });
    const full = sees.reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
    this.observation.replaceChildren(make("h2", {}, "Observation", make("small", {}, [shapes, full > values.length && values.length ? `the first ${values.length} numbers` : "", values.length ? "a full bar is the largest so far" : ""].filter(Boolean).join("; "))), values.length ? make("div", { class: "rows" }, ...rows.flat()) : make("p", { class: "faint" }, "an image: beside the picture"));
  }

  drawTeam(step, opinion) {
    const lines = this.agents.map((agent, i) => {
      const own = step[agent.group] || {}, thought = opinion[agent.group] || {}, space = this.facts.groups[agent.group].action, taken = own.action?.[agent.index];
      const at = taken && space.kind === "discrete" ? thought.probs?.[agent.index]?.[taken[0] - space.start] : null;
      return make("tr", { class: [i === this.at ? "here" : "", own.active?.[agent.index] === false ? "gone" : ""].join(" "), onclick: () => this.pick(i) },
        ...[agent.label, actionText(taken, space), at === null || at === undefined ? "–" : at.toFixed(2), number(own.reward?.[agent.index]), number(thought.value?.[agent.index]), number(this.series("advantage", agent)[this.step])].map((text, n) => make("td", { class: n > 1 ? "number" : "" }, text)));
    });
    this.team.replaceChildren(make("h2", {}, "Agents"), make("div", { class: "scrolling" }, make("table", { class: "team" }, make("tr", {}, ...["agent", "action", "probability", "reward", "value", "advantage"].map((name, n) => make("th", { class: n > 1 ? "number" : "" }, name))), ...lines)));
  }

  async drawDream() {
    if (this.dreamt === this.step) return;
    const step = this.dreamt = this.step;
    if (!this.dream.children.length) this.dream.replaceChildren(make("h2", {}, "World model"), make("p", { class: "faint" }, "imagining …"));
    const found = await ask("dream", { ...this.which, step }).catch((problem) => { if (problem.status !== 410) throw problem; });
    if (!found) { this.again(); return; }
    if (this.step !== step) return;
    if (found.problem) { this.dreamt = null; this.dream.replaceChildren(make("h2", {}, "World model"), make("p", { class: "faint" }, found.problem)); return; }
    const known = step - found.begin + 1, x = found.rewards[0].map((_, i) => found.begin + i);
    const parts = [make("h2", {}, "World model", make("small", {}, `it sees up to step ${step}, then imagines ${found.end - step} steps by the actions alone`))];
    const picture = await fetch(`/api/picture?${encoded({ ...this.which, what: "dream", step, near: 1 })}`, { signal: this.alive });
    if (picture.status === 200 && Number(picture.headers.get("X-Step")) === step) parts.push(make("img", { class: "strip", src: URL.createObjectURL(await picture.blob()), alt: "above what happened, below what the model makes of it" }), make("small", {}, `above what happened, below what the model makes of it; imagined from picture ${known + 1} on`));
    const charts = [["reward", found.rewards[0], found.rewards[1]]];
    const [truth = [], model = []] = found.numbers;
    (truth[0] || []).slice(0, 3).forEach((_, i) => charts.push([`number ${i}`, truth.map((line) => line[i]), model.map((line) => line[i])]));
    const made = charts.map(([name, happened, imagined]) => {
      const chart = new Chart({ title: name, axis: "step", height: 90 });
      chart.cursor = step;
      setTimeout(() => chart.set([{ label: "happened", x, y: happened, colour: 5 }, { label: "model", x, y: imagined, colour: 0 }]));
      return chart.node;
    });
    if (this.step === step) this.dream.replaceChildren(...parts, ...made);
  }
}

const row = (name, track, value, taken) => [make("span", { class: taken ? "name taken" : "name" }, name), track, make("span", { class: "number" }, value)];
function bar(from, to, taken) { return make("div", { class: "track" }, make("i", { class: taken ? "taken" : "", style: `left:${100 * from}%;width:${Math.max(0.6, 100 * (to - from))}%` })); }
function sums(values) { let total = 0; return values.map((value) => (value === null ? null : (total += value))); }
// What a choice, or a number of an action, is called: by the environment, else by its place.
function named(space, i) { return space.names[i] ?? (space.kind === "switches" ? `switch ${i}` : `action ${i + (space.start || 0)}`); }
function choices(space, count) {
  if (space.kind === "several") return space.counts.flatMap((n, dial) => Array.from({ length: n }, (_, i) => `${dial}: ${i}`));
  return Array.from({ length: count }, (_, i) => named(space, i));
}
function takenAt(space, taken) {
  if (!taken) return new Set();
  if (space.kind === "discrete") return new Set([taken[0] - space.start]);
  if (space.kind === "several") { let before = 0; return new Set(taken.map((value, i) => { const at = before + value; before += space.counts[i]; return at; })); }
  return new Set(taken.flatMap((on, i) => (on ? [i] : [])));
}
function actionText(taken, space) {
  if (!taken) return "–";
  if (space.kind === "box") return taken.slice(0, 6).map((value) => number(value)).join(", ") + (taken.length > 6 ? ", …" : "");
  if (space.kind === "switches" && space.names.length) return taken.flatMap((on, i) => (on ? [named(space, i)] : [])).join(" + ") || "none";
  return space.kind === "discrete" ? space.names[taken[0] - space.start] ?? String(taken[0]) : taken.join(", ");
}
