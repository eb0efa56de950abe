from __future__ import annotations

import http.client
import json
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from cadenza.base.json_text import with_digest
from cadenza.cli.inspect import redirect
from cadenza.lab.inspector import connections
from cadenza.lab.inspector.run_catalog import Catalog
from cadenza.lab.inspector.server import ADDRESS, ANSWERS, hosts
from cadenza.records.folder import RunFolder
from harness.command import TOY, cadenza
from harness.inspecting import Client, inspecting

SECRET = "the-secret-that-nobody-may-read"
HOSTILE = [
    "<script>document.title='pwned'<_script>",
    '"><img src=x onerror=alert(1)>',
    "line\nbreak\rand\ttab",
    "' OR 1=1; DROP TABLE runs;--",
    "%2e%2e%2fsecret",
    "a..secret",
    "‮reversed-日本語-🧨-\u0000"[:-1],
    "${7*7}{{7*7}}`id`$(id)",
]


@pytest.fixture(scope="module")
def root(whole: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run, copies of it under hostile names and with hostile metrics, and a secret beside the folder."""
    root = tmp_path_factory.mktemp("inspected") / "runs"
    (root.parent / "secret.txt").parent.mkdir(parents=True, exist_ok=True)
    (root.parent / "secret.txt").write_text(SECRET)
    (root.parent / "secret").mkdir()
    (root.parent / "secret" / "config.yaml").write_text(f"name: {SECRET}\n")
    shutil.copytree(whole.path, root / whole.id)
    manifest = json.loads((root / whole.id / "manifest.json").read_text())
    manifest["command"] = ["cadenza", "train", *TOY]  # the tests' own stands there
    (root / whole.id / "manifest.json").write_text(json.dumps(with_digest(manifest)))
    (root / whole.id / "videos" / "seen.gif").write_bytes(b"GIF89a")
    (root / whole.id / "videos" / "link.gif").symlink_to(root.parent / "secret.txt")
    for name in HOSTILE:
        shutil.copytree(whole.path, root / name)
        rows = [{"env_steps": i, name: i, "</script><b>": 1.5} for i in range(5)]
        (root / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        alert = {
            "rule": name,
            "severity": name,
            "metric": name,
            "env_steps": 1,
            "what": name,
            "explanation": "",
            "hint": "",
        }
        (root / name / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[Client]:
    with inspecting(root) as client:
        yield client


def test_requests_without_the_token_are_refused(client: Client) -> None:
    for target in ("/", "/static/app.js", "/api/runs", "/api/run?run=x", "/nothing"):
        for cookie in ("", f"{client.server.cookie}=wrong", f"{client.server.cookie}=", "token=" + client.server.token):
            status, _, content = client.send(target, {"Cookie": cookie})
            assert status == 403, target
            assert b"cadenza inspect" in content
    assert client.send("/?token=wrong", {"Cookie": ""})[0] == 403
    status, headers, page = client.send(f"/?token={client.server.token}", {"Cookie": ""})
    assert status == 200
    assert headers["Set-Cookie"] == f"{client.cookie}; Path=/; HttpOnly; SameSite=Strict"
    assert client.server.token.encode() not in page


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_from_other_sites_are_refused(client: Client, headers: dict[str, str]) -> None:
    own = {name: value.format(port=client.server.server_port) for name, value in headers.items()}
    status, _, content = client.send("/api/runs", own)
    assert status == 403
    assert b"runs" not in content
    local = {
        "Host": f"localhost:{client.server.server_port}",
        "Origin": f"http://localhost:{client.server.server_port}",
    }
    assert client.send("/api/runs", {**local, "Sec-Fetch-Site": "same-origin"})[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW"])
def test_methods_other_than_get_are_refused(client: Client, method: str) -> None:
    assert client.send("/api/runs", method=method)[0] in (405, 501)


def test_every_response_has_the_security_headers(client: Client) -> None:
    for target in ("/", "/static/app.js", "/api/runs", "/nothing", "/api/run"):
        _, headers, _ = client.send(target)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_server_listens_on_loopback_only(client: Client) -> None:
    port = client.server.server_port
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        if Path(f"/proc/net/{table}").exists()
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
    ]
    assert listening == [f"0100007F:{port:04X}"]
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
        if not str(address).startswith("127."):
            with socket.socket() as other:
                assert other.connect_ex((str(address), port)) != 0


def traversals() -> list[str]:
    """Return 500 requests for files that are not served."""
    draw = random.Random(0)
    ups = [
        "../",
        "..\\",
        "..%2f",
        "%2e%2e/",
        "%2e%2e%2f",
        "..%5c",
        "....//",
        "..;/",
        "%252e%252e%252f",
        "..%c0%af",
        "./../",
    ]
    ends = [
        "secret.txt",
        "secret",
        "secret/config.yaml",
        "secret.txt%00.gif",
        "secret.txt\x00",
        "etc/passwd",
        "index.sqlite",
    ]
    starts = ["", "/", "//", "file:///", "\\\\", "seen.gif/", "runs/", "~/", "./", "C:\\"]
    made = [a + up * depth + end for a in starts for up in ups for depth in (1, 2, 5) for end in ends]
    return draw.sample(made, 500)


def test_path_traversal_is_refused(client: Client, root: Path, whole: RunFolder) -> None:
    """Each text is tried as a path, as a run, and as a file of a run."""
    texts = traversals()
    assert len(set(texts)) == 500
    for text in texts:
        raw = text.replace(" ", "%20").replace("\x00", "%00")
        for target in (
            f"/{raw}",
            f"/static/{raw}",
            f"/api/run?run={quote(text, safe='')}",
            f"/api/run?run={raw}",
            f"/api/media?run={whole.id}&name={quote(text, safe='')}",
        ):
            status, _, content = client.send(target)
            assert status in (400, 404), (target, status)
            assert SECRET.encode() not in content
    for text in texts[:40]:
        for what in ("curves", "episodes", "origins", "compare", "sparks"):
            assert client.send(f"/api/{what}?run={quote(text, safe='')}")[0] in (400, 404)
        target = f"/api/episode?run={whole.id}&episode=0&checkpoint={quote(text, safe='')}"
        assert client.send(target)[0] == 404


def test_a_link_among_the_videos_is_not_followed(client: Client, whole: RunFolder) -> None:
    assert client.ask("run", run=whole.id)["media"] == ["seen.gif"]
    assert client.send(f"/api/media?run={whole.id}&name=seen.gif")[2] == b"GIF89a"
    assert client.send(f"/api/media?run={whole.id}&name=link.gif")[0] == 404


def test_hostile_names_are_returned_as_text(client: Client, whole: RunFolder) -> None:
    listed = {row["run"] for row in client.ask("runs")["runs"]}
    assert listed == {whole.id, *HOSTILE}
    for name in HOSTILE:
        found = client.ask("run", run=name)
        assert name in found["metrics"]
        assert found["alerts"][0]["rule"] == name
        curves = client.ask("curves", run=name, metric=[name, "</script><b>"])["curves"]
        assert curves[name]["y"] == [0, 1, 2, 3, 4]
        _, headers, _ = client.send(f"/api/run?run={quote(name, safe='')}")
        assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert client.ask("compare", run=HOSTILE, metric=["</script><b>"])["metrics"] == ["</script><b>"]


@pytest.mark.parametrize("what", sorted(set(ANSWERS) - {"/api/origins"}))
def test_malformed_queries_are_answered_in_one_line(client: Client, whole: RunFolder, what: str) -> None:
    for query in (
        "",
        f"run={whole.id}&episode=-1&step=x&begin=1e9&low=a&sort=%00&name=&axis=../x",
        "run=&run=&episode=9",
    ):
        status, _, content = client.send(f"{what}?{query}")
        if status != 200:
            assert status in (400, 404)
            assert "\n" not in json.loads(content)["error"]
    assert client.send("/api/runs?filter=nonsense")[0] == 400
    assert client.send("/api/runs?" + "&".join(["filter=a"] * 1000))[0] == 400
    assert client.send("http://[/")[0] == 400
    assert client.send("/" + "a" * 40_000)[0] == 414


def test_the_api_returns_rows_curves_and_settings_of_a_run(client: Client, whole: RunFolder) -> None:
    table = client.ask("runs")
    row = next(row for row in table["runs"] if row["run"] == whole.id)
    assert row["status"] == "finished"
    assert row["env_steps"] == 2048
    assert "runs" not in client.ask("runs", known=table["version"])
    assert [one["run"] for one in client.ask("runs", filter=[f"run={whole.id}", "env_steps>2000"])["runs"]] == [
        whole.id
    ]
    detail = client.ask("run", run=whole.id)
    assert detail["metrics"][0].startswith("eval/")
    assert {"name", "env_steps", "updates", "bytes", "pointers"} == set(detail["checkpoints"][0])
    assert ["algorithm.n_steps", 16] in detail["settings"]
    found = client.ask("curves", run=whole.id, metric=["eval/return_mean", "train/loss"])
    assert found["every"]
    assert found["rare"] == []
    assert len(found["curves"]["eval/return_mean"]["x"]) == 4
    assert (
        client.ask("curves", run=whole.id, metric=["train/loss"], begin=found["size"])["curves"]["train/loss"]["x"]
        == []
    )
    assert len(client.ask("sparks", run=[whole.id])[whole.id]) == 16  # few evaluations: of training episodes
    keys = client.ask("origins", run=whole.id)["keys"]
    assert keys["algorithm.n_steps"]["source"] == "override algorithm.n_steps=16"
    assert keys["algorithm.n_steps"]["doc"]
    assert keys["training.max_timesteps"]["source"] == "command line: --max-timesteps"


def test_an_episode_is_played_again_in_a_process_of_its_own(client: Client, whole: RunFolder) -> None:
    listed = client.ask("episodes", run=whole.id, sort="return", falling="true", count=5)
    assert [one["return"] for one in listed["episodes"]] == sorted(
        (one["return"] for one in listed["episodes"]), reverse=True
    )
    chosen = listed["episodes"][0]
    query = {"run": whole.id, "episode": chosen["episode"], "checkpoint": "last"}
    ready = _when_ready(client, query)
    assert ready["identical"] is True
    assert ready["facts"]["seed"] == chosen["seed"]
    series = ready["series"]["agent"]
    rewards = [one[0] for one in series["reward"] if one is not None]
    assert sum(rewards) == pytest.approx(chosen["return"], abs=1e-3)
    assert len(series["value"]) == chosen["length"] + 1
    assert len(series["advantage"]) == chosen["length"]
    gamma, error = ready["credit"]["agent"]["gamma"], []
    values = [one[0] for one in series["value"]]
    error = [r + gamma * after - now for r, now, after in zip(rewards, values, values[1:], strict=False)]
    assert series["advantage"][-1][0] == pytest.approx(error[-1], abs=2e-3)
    window = client.ask("steps", **query, begin=2, count=3)
    assert len(window["steps"]) == 3
    for step, opinion in zip(window["steps"], window["opinions"], strict=True):
        assert sum(opinion["agent"]["probs"][0]) == pytest.approx(1, abs=1e-3)
        assert step["agent"]["action"][0][0] in (0, 1)
    assert psutil.Process().children(), "it is played in this process"
    client.server.sessions.close()


def _when_ready(client: Client, query: dict[str, Any]) -> Any:
    end = time.monotonic() + 120
    client.ask("episode", **query)
    while time.monotonic() < end:
        if client.ask("episode", **query, progress=1)["stage"] in ("ready", "closed"):
            return client.ask("episode", **query)
        time.sleep(0.1)
    raise AssertionError(client.ask("episode", **query, progress=1))


def test_damaged_and_deleted_runs_are_answered_in_one_line(whole: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "runs" / whole.id)
    for name in ("odd", "gone"):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "config.yaml").write_text("training: 3\n")
    with inspecting(tmp_path / "runs") as client:
        assert client.ask("run", run="odd")["budget"] is None
        (tmp_path / "runs" / "odd" / "manifest.json").write_text('{"config_hash": 1, "command": 7, "spec": []}')
        for what in ("run", "stand", "curves", "episodes", "compare"):
            status, _, content = client.send(f"/api/{what}?run=odd")
            assert status == 200 or "\n" not in json.loads(content)["error"]
        assert client.send("/api/run?run=gone")[0] == 200
        shutil.rmtree(tmp_path / "runs" / "gone")
        for what in ("run", "stand", "curves", "episodes", "origins", "compare"):
            assert client.send(f"/api/{what}?run=gone")[0] == 404, what
        found = client.ask("compare", run=["gone", whole.id])
        assert found["missing"] == ["gone"]
        assert found["notes"][-1] == "gone does not exist any more"


def test_comparing_too_many_runs_is_refused(client: Client) -> None:
    query = "&".join(f"run=CartPole-v1-ppo-s0-20260101-000000-{i:04x}" for i in range(230))
    status, _, content = client.send(f"/api/compare?{query}")
    assert status == 400
    assert b"choose 1 to 200 runs" in content


def test_runs_of_other_folders_can_be_opened(whole: RunFolder, tmp_path: Path) -> None:
    here, there = tmp_path / "runs", tmp_path / "others"
    for path in (here / whole.id, there / whole.id, there / "guest"):
        shutil.copytree(whole.path, path)
    cadenza("inspect", there / whole.id, "--runs-dir", here).refused(2, "of that name, too", f"--runs-dir {there}")
    guest = RunFolder(there / "guest")
    guest.update_status(status="running")
    catalog = Catalog(here, [RunFolder(here / whole.id), guest])
    status = [{row["run"]: row["status"] for row in catalog.table([], "")["runs"]}]
    guest.update_status(status="finished")
    status += [{row["run"]: row["status"] for row in catalog.table([], "")["runs"]}]
    assert [one["guest"] for one in status] == ["crashed", "finished"]
    assert set(status[1]) == {whole.id, "guest"}


def test_the_address_is_no_argument_of_the_browser() -> None:
    page = redirect("http://127.0.0.1:1/?token=a&b#/")
    try:
        assert page.stat().st_mode & 0o777 == 0o600
        assert 'content="0; url=http://127.0.0.1:1/?token=a&amp;b#/"' in page.read_text()
    finally:
        page.unlink()


def test_hosts_include_the_default_port_without_number() -> None:
    assert hosts(80) == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}
    assert hosts(8080) == {"127.0.0.1:8080", "localhost:8080"}


def test_requests_do_not_change_the_run_folder(whole: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "runs" / whole.id)
    before = _contents(tmp_path / "runs" / whole.id)
    with inspecting(tmp_path / "runs") as client:
        for what in ("run", "stand", "curves", "episodes", "compare", "sparks"):
            client.ask(what, run=whole.id, metric=["train/loss"])
    assert _contents(tmp_path / "runs" / whole.id) == before


def _contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def test_invalid_arguments_of_inspect_are_refused(tmp_path: Path) -> None:
    cadenza("inspect", "nothing", "--runs-dir", tmp_path).refused(2, "no run")
    cadenza("inspect", "--runs-dir", tmp_path / "nowhere").refused(2, "--runs-dir", "no such folder")
    cadenza("inspect", "--port", "70000", "--runs-dir", tmp_path).refused(2, "--port")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cadenza("inspect", "--port", port, "--runs-dir", tmp_path).refused(74, f"--port {port}")


def test_a_poll_of_a_running_training_returns_only_changes(whole: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "runs" / "copy")
    metrics = tmp_path / "runs" / "copy" / "metrics.jsonl"
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(rows[:-2]))
    with inspecting(tmp_path / "runs") as client:
        name = "train/loss" if "train/loss" in rows[-1] else "updates"
        size = client.ask("curves", run="copy", metric=name)["size"]
        first = client.ask("stand", run="copy", metric=name, begin=size, asked=3)
        assert "curves" not in first
        assert first["status"] == "finished"
        assert client.ask("stand", run="copy", known=first["version"]) == {"version": first["version"]}
        with metrics.open("a") as file:
            file.writelines(rows[-2:])
        second = client.ask("stand", run="copy", known=first["version"], metric=name, begin=size, asked=3)
        assert second["curves"]["asked"] == 3
        assert second["curves"]["size"] == metrics.stat().st_size
        assert second["curves"]["curves"][name]["x"] == [json.loads(row)["env_steps"] for row in rows[-2:]]


def test_three_hundred_idle_connections_make_few_threads_and_the_page_still_answers(client: Client) -> None:
    place = (ADDRESS, client.server.server_port)
    idle = []
    try:
        before = threading.active_count()
        for number in range(300):
            connection = socket.create_connection(place)
            idle.append(connection)
            if number % 3 == 0:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: ")  # a request that never ends
        began = time.monotonic()
        status, _, content = client.send("/static/app.js")
        assert (status, time.monotonic() - began < 1) == (200, True)
        assert content
        assert threading.active_count() - before <= connections.MOST
    finally:
        for connection in idle:
            connection.close()


def test_a_connection_is_kept_for_the_next_request(client: Client) -> None:
    connection = http.client.HTTPConnection(ADDRESS, client.server.server_port, timeout=60)
    for _ in range(3):
        connection.request("GET", "/static/app.js", headers={"Cookie": client.cookie})
        answer = connection.getresponse()
        assert (answer.status, answer.will_close) == (200, False)
        answer.read()
    connection.close()


def test_a_head_that_is_too_large_is_refused(client: Client) -> None:
    with socket.create_connection((ADDRESS, client.server.server_port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(OSError):  # it is closed while this is still sent
            for number in range(80):
                connection.sendall(f"X-{number}: {'x' * 4000}\r\n".encode())
        answer = b""
        with suppress(OSError):
            answer = connection.recv(1000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


def test_the_head_of_a_request_has_a_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, connections.HEAD_SECONDS - 1, connections.HEAD_SECONDS))
    monkeypatch.setattr("cadenza.lab.inspector.connections.time.monotonic", lambda: next(clock))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = connections.HeadReader(ours)
        for letter in b"GE":
            theirs.sendall(bytes([letter]))
            assert reader.read(1) == bytes([letter])
        with pytest.raises(TimeoutError, match="takes too long"):
            reader.read(1)


def test_a_new_connection_is_refused_where_all_are_busy() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    pool = connections.Connections(most=2)
    try:
        assert all(pool.admit(ours) for ours, _ in pairs[:2])
        for ours, _ in pairs[:2]:
            pool.mark_busy(ours)
        assert not pool.admit(pairs[2][0])
        connections.refuse(pairs[2][0])
        assert pairs[2][1].recv(1000) == connections.REFUSAL
        pool.release(pairs[0][0])
        assert pool.admit(pairs[2][0])
    finally:
        for ours, theirs in pairs:
            ours.close()
            theirs.close()
