// Runs beside each other: the same page as `cadenza compare --plot FILE.html`, with a choice of metrics.
import { ask, choose, chosen, colours, empty, go, keep, kept, place, report } from "./app.js";

export async function compareView(view, runs) {
  if (!runs.length) {
    view.replaceChildren(empty("Choose runs in the table (the box before each, or x), then compare them here. Seeds of one config are put together."));
    return;
  }
  document.title = "comparison";
  const page = make("div", { class: "comparison" }), list = make("div", { class: "choices" });
  const chip = (run) => make("span", { class: "chip" }, make("a", { href: place.run(run) }, run), make("button", { class: "plain", title: "take out", "aria-label": "take out", onclick: () => { if (chosen.has(run)) choose(run, false); go(place.compare(runs.filter((one) => one !== run))); } }, "×"));
  const count = make("summary"), chips = make("div", { class: "chips" });
  let wanted = kept("compared", []);
  const picker = make("details", { class: "picker" }, make("summary", {}, "metrics"), list);
  view.replaceChildren(make("details", { class: "picker", open: runs.length < 9 }, count, chips), picker, page);
  page.append(empty("comparing …"));
  drawRuns();

  function drawRuns() {
    count.textContent = `${runs.length} runs`;
    chips.replaceChildren(...runs.map(chip));
  }

  async function load() {
    let found;
    try { found = await ask("compare", { run: runs, metric: wanted }); } catch (problem) {
      if (problem.status === 404) runs.forEach((run) => choose(run, false));  // none of them is there any more
      if (!wanted.length || problem.name === "AbortError" || problem.status === 404) throw problem;
      wanted = [];  // chosen for other runs, which had them
      found = await ask("compare", { run: runs });
    }
    if (found.missing.length) {  // deleted since they were chosen; a note on the page says so
      found.missing.forEach((run) => choose(run, false));
      runs = runs.filter((run) => !found.missing.includes(run));
      drawRuns();
    }
    const palette = colours();
    found.labels.forEach((entry, i) => { entry.colour = palette[i % palette.length]; });
    page.replaceChildren();
    showComparison(found, page);
    list.replaceChildren(...found.known.map((name) => make("label", {}, make("input", { type: "checkbox", checked: found.metrics.includes(name), onchange: (event) => {
      wanted = event.target.checked ? [...found.metrics, name] : found.metrics.filter((one) => one !== name);
      keep("compared", wanted);
      load().catch(report);
    } }), ` ${name}`)));
  }
  await load();
}
