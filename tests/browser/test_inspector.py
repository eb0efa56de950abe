"""The inspector in a real Chromium: every view, by mouse and keys, without an error on the console."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.records.folder import RunFolder
from cadenza.records.lock import RunLock
from harness.browser import Browser, program
from harness.inspecting import Client, inspecting

pytestmark = pytest.mark.skipif(program() is None, reason="there is no Chromium here")

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1<_script>\'"\n\t‮日本語'


@pytest.fixture(scope="module")
def client(whole: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("seen") / "runs"
    for name in (whole.id, HOSTILE):
        shutil.copytree(whole.path, root / name)
    odd = root / HOSTILE
    rows = [{"env_steps": i, "updates": i, HOSTILE: float(i), "eval/return_mean": 1.0 * i} for i in range(20)]
    (odd / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    alert = {"metric": HOSTILE, "env_steps": 3, "what": HOSTILE, "explanation": HOSTILE, "hint": HOSTILE}
    (odd / "alerts.jsonl").write_text(json.dumps({"rule": HOSTILE, "severity": HOSTILE, **alert}) + "\n")
    (odd / "logs" / "run.log").write_text(HOSTILE)
    with inspecting(root) as client:
        yield client


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def test_every_view_shows_its_content(client: Client, browser: Browser, whole: RunFolder) -> None:
    browser.prefer("light")
    browser.open(client.server.address())
    browser.until("document.querySelectorAll('tbody tr').length === 2")
    assert browser.run("location.search") == "", "the token stays in the address"
    assert browser.run("document.documentElement.dataset.theme") == "light"
    browser.key("t")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    browser.key("?")
    browser.until("document.querySelector('dialog')?.innerText.includes('next run')")
    browser.key("Escape")
    browser.until("!document.querySelector('dialog')")
    browser.until("[...document.querySelectorAll('tbody canvas')].some((one) => one.width > 0)")

    # a filter, by words and as in `cadenza list`
    browser.key("/")
    browser.run("document.activeElement.value = 'run=toy* identity'")
    browser.run("document.activeElement.dispatchEvent(new Event('input'))")
    browser.until("document.querySelectorAll('tbody tr').length === 1")
    browser.key("Escape")
    browser.key("x")
    browser.key("Enter")
    browser.until(f"document.querySelector('h1')?.textContent === {json.dumps(whole.id)}")

    # curves: drawn, looked at closer, all of it again
    browser.until("document.querySelectorAll('.chart').length >= 4")
    place = browser.run(
        "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('.over').getBoundingClientRect())"
    )
    y = place[1] + place[3] / 2
    browser.drag((place[0] + 0.4 * place[2], y), (place[0] + 0.7 * place[2], y))
    browser.until(
        "[...document.querySelectorAll('button')].some((one) => one.textContent === 'whole run' && !one.hidden)"
    )
    browser.key("w")
    browser.until(
        "[...document.querySelectorAll('button')].every((one) => one.textContent !== 'whole run' || one.hidden)"
    )
    browser.key("s")
    browser.until("document.querySelector('output').textContent !== '0'")

    # what else there is about a run
    browser.key("3")
    browser.until("document.querySelector('.config')?.innerText.includes('algorithm.n_steps')")
    browser.until("document.querySelector('.config').innerText.includes('default in the schema')")
    browser.key("4")
    browser.until("document.body.innerText.includes('step-000000002048')")
    browser.key("5")
    browser.until("document.body.innerText.includes('Decided automatically')")
    browser.key("6")
    browser.until("document.querySelector('.log')?.textContent.includes('toy/identity')")

    # an episode
    browser.key("2")
    browser.until("document.querySelectorAll('tbody tr').length > 20")
    browser.click("tbody tr:nth-child(2) a")
    browser.until("/to the last bit/.test(document.querySelector('main p')?.textContent)")
    browser.until("document.querySelector('main').innerText.includes('Action probabilities')")
    browser.until("document.querySelectorAll('.strips .chart').length === 4")
    before = browser.run("document.querySelector('.transport .number').textContent")
    assert before.startswith("0 /")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    browser.until("document.querySelector('.transport .number').textContent.startsWith('2 /')")
    browser.key(" ")
    browser.until("parseInt(document.querySelector('.transport .number').textContent) > 4")

    # beside another
    browser.key("r")
    browser.until("document.querySelectorAll('tbody tr').length >= 1")
    browser.key("c")
    browser.until("document.querySelectorAll('.comparison svg path').length > 2")
    assert browser.problems == []


def test_an_episode_is_left_reopened_and_controlled_by_keys(client: Client, browser: Browser, whole: RunFolder) -> None:
    counter = "document.querySelector('.transport .number')?.textContent"
    browser.open(client.server.address(f"#/run/{whole.id}/episode/1?checkpoint="))
    browser.until("/to the last bit/.test(document.querySelector('main p')?.textContent)")
    browser.run("document.querySelector('[aria-label^=\"next step\"]').focus()")
    browser.key(" ")  # the button's, not `play`
    browser.until(f"{counter}?.startsWith('1 /')")
    assert browser.run("document.querySelector('[aria-label=\"play or pause\"]').textContent") == "▶"

    # what was begun there does not reach into the next view
    browser.run("document.activeElement.blur()")
    browser.key("ArrowRight")
    browser.run("location.hash = '#/'")
    browser.until("document.querySelectorAll('tbody tr').length >= 1")
    browser.run("new Promise((done) => setTimeout(done, 250))")
    assert browser.run("location.hash") == "#/"
    assert browser.problems == []


TEAM = """(() => {
  const action = { kind: "discrete", start: 0, n: 2, names: [] };
  const group = { agents: ["ann", "bob"], sees: [[1]], keys: [""], numbers: ["0"], action };
  const opinion = { team: { probs: [[0.5, 0.5], [0.5, 0.5]], value: [0, 0] } };
  const step = { team: { obs: [[0], [1]], action: [[0], [1]], reward: [1, 2], active: [true, true] } };
  const answers = {
    run: { facts: {}, checkpoints: [], alerts: [], metrics: [] },
    steps: { steps: [step, step, step], opinions: [opinion, opinion, opinion] },
    episode: { stage: "ready", done: 2, judged: 2, notes: ["it cannot render"],
      facts: { length: 2, fps: 9, groups: { team: group } }, series: { team: { reward: [[1, 2], [1, 2]] } } }
  };
  window.fetch = async (address) => new Response(JSON.stringify(answers[address.match(/api.(\\w+)/)[1]]));
  location.hash = "#/run/team/episode/0?checkpoint=";
})()"""


def test_a_legend_names_the_agents_whose_curves_are_drawn(client: Client, browser: Browser) -> None:
    browser.open(client.server.address())
    browser.until("document.querySelectorAll('tbody tr').length >= 1")
    browser.run(TEAM)
    names = "[...document.querySelectorAll('.legend button')].map((one) => `${one.className} ${one.textContent}`)"
    browser.until(f"{names}.length === 2")
    assert browser.run(names) == ["strong ann", "faint bob"]
    colours = browser.run("[...document.querySelectorAll('.legend i')].map((one) => one.style.borderTopColor)")
    assert len(set(colours)) == 2
    browser.click(".legend button:nth-child(2)")
    assert browser.run(names) == ["faint ann", "strong bob"]
    assert browser.problems == []


def test_a_visible_page_follows_a_running_training_and_a_hidden_one_sends_no_request(
    client: Client, browser: Browser, whole: RunFolder
) -> None:
    """The first rows appear, then later ones; a hidden page sends no request until it is visible again."""
    run = RunFolder(client.server.catalog.root / "live")
    shutil.copytree(whole.path, run.path)
    rows = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.path.write_text("")
    run.status.path.write_text(json.dumps(run.read_status() | {"status": "running"}))
    try:
        with RunLock(run.path):
            browser.open(client.server.address("#/run/live/curves"))
            browser.until(
                "document.querySelector('.picker')?.innerText.includes('of 1 shown')"
            )  # what the status tells
            run.metrics.path.write_text("".join(rows[:4]))
            browser.until("document.querySelectorAll('.chart').length >= 3")
            browser.run(
                "window.asked = 0; window.old = fetch; window.fetch = (...all) => { asked++; return old(...all); }"
            )
            hide = "Object.defineProperty(document, 'hidden', { configurable: true, get: () => %s })"
            visibility_event = "document.dispatchEvent(new Event('visibilitychange'))"
            head = "document.querySelector('.head h1')"
            browser.run(f"window.kept = {head}")
            browser.run(f"{hide % 'true'}; {visibility_event}")
            browser.run("new Promise((done) => setTimeout(done, 200))")  # what was under way
            requests = browser.run("asked")
            with run.metrics.path.open("a") as file:
                file.write(rows[4])
            browser.run("new Promise((done) => setTimeout(done, 2300))")
            assert browser.run("asked") == requests
            browser.run(f"{hide % 'false'}; {visibility_event}")
            reached = json.loads(rows[4])["env_steps"]
            shows_number = (
                "[...document.querySelectorAll('.facts b')].some((one) => one.textContent.startsWith(number(%d)))"
            )
            browser.until(shows_number % reached)
            assert browser.run("asked") == requests + 1, "one look is one question"
            assert browser.run(f"kept === {head}"), "what stays the same was made anew"
            assert browser.problems == []
    finally:
        shutil.rmtree(run.path)


def test_metrics_that_come_between_the_list_of_metrics_and_the_first_curves_are_shown(
    client: Client, browser: Browser, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(client.server.catalog.root / "live")
    shutil.copytree(whole.path, run.path)
    rows = run.metrics.read_bytes()
    run.metrics.path.write_bytes(b"")
    run.status.path.write_text(json.dumps(run.read_status() | {"status": "running"}))
    catalog = client.server.catalog
    first_curves = catalog.curves

    def curves_after_rows(*query: Any, **options: Any) -> dict[str, Any]:
        run.metrics.path.write_bytes(rows)
        return first_curves(*query, **options)

    monkeypatch.setattr(catalog, "curves", curves_after_rows)
    try:
        with RunLock(run.path):
            browser.open(client.server.address("#/run/live/curves"))
            browser.until("document.querySelectorAll('.chart').length >= 3")
            assert browser.problems == []
    finally:
        shutil.rmtree(run.path)


def test_stored_selections_of_deleted_runs_are_named_and_many_seeds_are_compared(
    client: Client, browser: Browser, whole: RunFolder
) -> None:
    browser.open(client.server.address())
    browser.until("document.querySelectorAll('tbody tr').length >= 1")
    selection = json.dumps(json.dumps(["gone", whole.id]))
    browser.run(f"localStorage.setItem('cadenza.chosen', {selection})")
    browser.run("location.reload()")
    browser.until("document.querySelector('nav')?.innerText.includes('Compare 2')")
    browser.key("c")
    browser.until("document.querySelector('.comparison')?.innerText.includes('gone does not exist any more')")
    assert "Compare 1" in browser.run("document.querySelector('nav').innerText")
    many = f"""
        fetch('/api/compare?run={whole.id}').then((one) => one.json()).then((found) => {{
            const seed = {{ x: Array.from({{ length: 1000 }}, (_, i) => i), y: Array(1000).fill(1) }};
            for (const curve of found.series.flatMap((one) => Object.values(one.curves).flatMap(Object.values)))
                curve.seeds = Array(200).fill(seed);
            const page = document.createElement('div');
            showComparison(found, page);
            return page.querySelectorAll('path').length;
        }})"""
    assert browser.run(many) > 200
    assert browser.problems == []


def test_hostile_names_are_shown_as_text(client: Client, browser: Browser) -> None:
    browser.open(client.server.address())
    browser.until("!!document.querySelector('[data-filter]')")
    browser.run("localStorage.clear()")
    browser.open(client.server.address("#/"))
    browser.run("location.reload()")
    browser.until("document.querySelectorAll('tbody tr').length === 2")
    name = json.dumps(HOSTILE)
    browser.until(f"[...document.querySelectorAll('tbody a')].some((one) => one.textContent === {name})")
    for tab in ("curves", "config", "checkpoints", "machine", "log", "episodes"):
        browser.run(f"location.hash = '#/run/' + encodeURIComponent({name}) + '/{tab}'")
        browser.until(
            f"document.querySelector('h1')?.textContent === {name} && !!document.querySelector('.body').children.length"
        )
    browser.run(f"location.hash = '#/compare?run=' + encodeURIComponent({name})")
    browser.until("document.querySelectorAll('.comparison svg').length > 0")
    assert browser.run("window.pwned") is None
    assert browser.run("document.querySelectorAll('img[src=x]').length") == 0
    assert browser.problems == []


def test_a_page_of_another_origin_gets_no_answer(client: Client, browser: Browser, tmp_path: Path) -> None:
    """It is opened as a file while the token's cookie is there."""
    page = tmp_path / "evil.html"
    page.write_text("<!doctype html><title>evil</title>")
    browser.open(page.as_uri())
    browser.until("document.title === 'evil'")
    target = f"http://127.0.0.1:{client.server.server_port}/api/runs"
    script = f"fetch({json.dumps(target)}, {{credentials: 'include'}}).then((one) => one.text(), () => 'refused')"
    assert browser.run(script) == "refused"
    framed = f"new Promise((done) => {{ const f = document.createElement('script'); f.src = {json.dumps(target)}; "
    assert (
        browser.run(
            framed + "f.onload = () => done('ran'); f.onerror = () => done('refused'); document.head.append(f); })"
        )
        == "refused"
    )


def test_no_view_is_wider_than_a_phone(client: Client, browser: Browser, whole: RunFolder) -> None:
    browser.resize(390, 844)
    try:
        for place in (
            "#/",
            *(f"#/run/{whole.id}/{tab}" for tab in ("curves", "config", "checkpoints", "log", "episodes")),
        ):
            browser.open(f"{client.server.address()}{place}")
            browser.until("!!document.querySelector('main .chart, main table, main pre')")
            assert browser.run("document.documentElement.scrollWidth") <= 390, place
            hidden = "[...document.querySelectorAll('main table')].some((one) => one.scrollWidth > one.clientWidth"
            hidden += " && getComputedStyle(one).overflowX === 'clip')"
            assert not browser.run(hidden), f"{place} cuts off a table"
    finally:
        browser.resize(1400, 900)
