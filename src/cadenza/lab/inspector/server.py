"""The inspector's web server: this machine alone, by a token, reading only. Answers are JSON, pictures and the page."""

from __future__ import annotations

import hmac
import io
import json
import os
import secrets
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cadenza.base.json_text import dumps
from cadenza.errors import CadenzaError, ConfigError, NotFoundError, StorageError
from cadenza.lab.inspector.connections import Connections, HeadReader, HeadTooLarge, refuse
from cadenza.lab.inspector.run_catalog import Catalog, checkpoints
from cadenza.lab.inspector.sessions import CHILD, WAIT_SECONDS, WAITING, EpisodeSession, Sessions

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
PORT = 8765  # the first that is tried
USUAL_PORT = 80  # which browsers leave out of Host and Origin
PAGE = {
    "index.html": "text/html",
    "style.css": "text/css",
    **dict.fromkeys(("app.js", "chart.js", "runs.js", "run.js", "episode.js", "compare.js"), "text/javascript"),
}
SHARED = {"plot.js": "text/javascript", "comparison_page.js": "text/javascript"}  # of lab/: comparisons as a file
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LONGEST_FILM = 1 << 28  # bytes of a file that is shown whole
MOST_RUNS = 200  # in one comparison, or of which small curves are asked for at once
NICENESS = 5
TEXT_LIMIT = 32_768  # characters of an address: as many runs as can be compared

Query = dict[str, list[str]]


class Inspector(ThreadingHTTPServer):
    """Listens on the loopback interface from the moment it is made."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, catalog: Catalog, port: int | None = None, trust: bool = False) -> None:
        self.catalog, self.trust, self.sessions = catalog, trust, Sessions(trust)
        self.token = secrets.token_urlsafe(24)
        self.static = {f"/static/{name}": (read(name), kind) for name, kind in (PAGE | SHARED).items()}
        self.connections = Connections()
        self.busy = threading.Lock()  # comparisons one after the other: each takes all of a core
        super().__init__((ADDRESS, bindable(port)), Handler)
        self.names = hosts(self.server_port)

    def address(self, view: str = "") -> str:
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}{view}"

    @property
    def cookie(self) -> str:
        return f"cadenza-{self.server_port}"  # cookies know no ports

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there is room for one more connection."""
        if self.connections.admit(request):
            super().process_request(request, client_address)
        else:
            refuse(request)
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        try:
            super().shutdown_request(request)
        finally:
            self.connections.release(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a tab in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def server_close(self) -> None:
        self.sessions.close()
        super().server_close()


def hosts(port: int) -> set[str]:
    """What a browser may call this server."""
    return {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == USUAL_PORT else set())


def bindable(port: int | None) -> int:
    """The port asked for, else the usual one, else any that is free."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, PORT if port is None else port))
        except (OSError, OverflowError) as problem:
            if port is None:
                return 0
            reason = problem.strerror if isinstance(problem, OSError) else "ports go to 65535"
            raise StorageError(f"--port {port}: {reason}") from None
    return PORT if port is None else port


def read(name: str) -> bytes:
    folder = files("cadenza.lab.inspector").joinpath("page") if name in PAGE else files("cadenza.lab")
    return folder.joinpath(name).read_bytes()


def serve(inspector: Inspector) -> None:
    """Until Ctrl-C; gently, so that a run that trains here is not disturbed."""
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)
    try:
        inspector.serve_forever(poll_interval=0.5)
    finally:
        inspector.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Inspector
    protocol_version = "HTTP/1.1"
    server_version = "cadenza"
    sys_version = ""
    timeout = 60  # seconds to send an answer

    def setup(self) -> None:
        super().setup()
        self._head = HeadReader(self.connection)
        self.rfile = io.BufferedReader(self._head)

    def handle_one_request(self) -> None:
        self.server.connections.waits(self.connection)
        self._head.begin()
        try:
            super().handle_one_request()
        except HeadTooLarge:
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", "GET"
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too large")

    def parse_request(self) -> bool:
        whole = super().parse_request()
        self.server.connections.works(self.connection)
        self.connection.settimeout(self.timeout)
        return whole

    def do_GET(self) -> None:
        if len(self.path) > TEXT_LIMIT:
            return self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, keep_blank_values=True)
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST, "the address cannot be read")
        arriving = url.path == "/" and self._same(query.get("token", [""])[0])
        problem = self._stranger(arriving)
        if problem:
            return self._refuse(HTTPStatus.FORBIDDEN, problem)
        if url.path == "/":
            page, kind = self.server.static["/static/index.html"]
            cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
            return self._send(page, kind, headers={"Set-Cookie": cookie} if arriving else {})
        if url.path in self.server.static:
            return self._send(*self.server.static[url.path])
        if url.path == "/favicon.ico":
            return self._send(b"", "image/x-icon", HTTPStatus.NO_CONTENT)
        answer = ANSWERS.get(url.path)
        if answer is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        try:
            found = answer(self.server, query)
            content = b"" if isinstance(found, Picture) else dumps(found).encode(errors="replace")
        except NotFoundError as wrong:
            return self._refuse(HTTPStatus.NOT_FOUND, one_line(wrong))
        except Gone as wrong:
            return self._refuse(HTTPStatus.GONE, one_line(wrong))
        except (CadenzaError, ValueError, KeyError) as wrong:
            return self._refuse(HTTPStatus.BAD_REQUEST, one_line(wrong))
        except OSError as wrong:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, wrong.strerror or one_line(wrong))
        except Exception as wrong:  # files of a run may hold anything: the others are still to be seen
            reason = f"this cannot be shown ({type(wrong).__name__}: {one_line(wrong)})"
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
        if isinstance(found, Picture) and not found.content:
            return self._send(b"", "text/plain", HTTPStatus.NO_CONTENT)
        if isinstance(found, Picture):
            return self._send(found.content, found.kind, headers={"X-Step": str(found.step)})
        return self._send(content, "application/json")

    def _only_get(self) -> None:
        self.close_connection = True  # whatever was sent along is not read
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "the inspector only shows: GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _only_get

    def _stranger(self, arriving: bool) -> str:
        """Why a request is not answered: another site's page, or a name that was made to point here."""
        if self.headers.get("Host", "") not in self.server.names:
            return "another host"
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{name}" for name in self.server.names}:
            return "another origin"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not arriving:
            return "asked for by another site"
        if arriving or self._same(self._cookie()):
            return ""
        return "open the address that `cadenza inspect` printed: it holds the token"

    def _cookie(self) -> str:
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.server.cookie:
                return value
        return ""

    def _same(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.server.token.encode())

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(dumps({"error": reason}).encode(), "application/json", status)

    def _send(
        self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        text = kind.startswith("text/") or kind == "application/json"
        own = {"Content-Type": f"{kind}; charset=utf-8" if text else kind, "Content-Length": str(len(content))}
        for name, value in {**HEADERS, **own, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: addresses with tokens belong into no log."""


class Gone(CadenzaError):
    """An episode that was open and is not any more; the page then opens it again, where somebody looks at it."""


class Picture:
    def __init__(self, content: bytes, kind: str, step: int = 0) -> None:
        self.content, self.kind, self.step = content, kind, step


# what can be asked for


def one_line(problem: BaseException) -> str:
    text = problem.args[0] if isinstance(problem, KeyError) and problem.args else problem
    return " ".join(str(text).split("\n"))


def text(query: Query, name: str, otherwise: str | None = None) -> str:
    if name in query:
        return query[name][0]
    if otherwise is None:
        raise ConfigError(f"'{name}' is missing")
    return otherwise


def number(query: Query, name: str, otherwise: int | None = None) -> int:
    given = text(query, name, None if otherwise is None else str(otherwise))
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise ConfigError(f"'{name}' must be a whole number")
    return int(given)


def real(query: Query, name: str) -> float | None:
    return float(query[name][0]) if name in query else None


def runs(inspector: Inspector, query: Query) -> Any:
    return inspector.catalog.table(query.get("filter", []), text(query, "known", ""))


def sparks(inspector: Inspector, query: Query) -> Any:
    return inspector.catalog.sparks(query.get("run", [])[:MOST_RUNS])


def run(inspector: Inspector, query: Query) -> Any:
    return inspector.catalog.detail(text(query, "run"))


def stand(inspector: Inspector, query: Query) -> Any:
    """What is new of a run that trains: where it stands, and by what its curves went on since a byte of its rows."""
    found = inspector.catalog.stand(text(query, "run"))
    version = f"{hash(dumps(found)):x}"
    answer: dict[str, Any] = (
        {"version": version} if version == text(query, "known", "") else found | {"version": version}
    )
    begin = number(query, "begin", 0)
    if query.get("metric"):
        new = inspector.catalog.curves(
            text(query, "run"), query["metric"], text(query, "axis", "env_steps"), None, None, begin
        )
        if new["size"] != begin:
            answer["curves"] = new | {"asked": number(query, "asked", 0)}
    return answer


def curves(inspector: Inspector, query: Query) -> Any:
    span = (real(query, "low"), real(query, "high"))
    axis, wanted = text(query, "axis", "env_steps"), query.get("metric", [])
    return inspector.catalog.curves(
        text(query, "run"), wanted, axis, *span, number(query, "begin", 0), "quick" in query
    )


def sources(inspector: Inspector, query: Query) -> Any:
    """Where each value of the config came from, by a child of its own."""
    run = str(inspector.catalog.folder(text(query, "run")).path.absolute())
    command = [*CHILD, "cadenza.lab.inspector.setting_sources", run, *(["trust"] if inspector.trust else [])]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_SECONDS, check=False)
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError, subprocess.TimeoutExpired):
        raise CadenzaError("where its values came from cannot be told") from None


def episodes(inspector: Inspector, query: Query) -> Any:
    page = (number(query, "begin", 0), min(500, number(query, "count", 100)))
    falling = text(query, "falling", "") == "true"
    return inspector.catalog.episodes(text(query, "run"), text(query, "sort", "episode"), falling, *page)


def episode(inspector: Inspector, query: Query) -> Any:
    which = episode_of(inspector, query)
    if "progress" in query:
        known = inspector.sessions.find(*which)
        return {"stage": "closed"} if known is None else known.progress()
    session = inspector.sessions.open(*which)
    return WAITING if session is None else session.outline()


def steps(inspector: Inspector, query: Query) -> Any:
    begin = number(query, "begin")
    return open_session(inspector, query).window(begin, begin + min(1000, number(query, "count", 200)))


def picture(inspector: Inspector, query: Query) -> Any:
    found = open_session(inspector, query).picture(text(query, "what"), number(query, "step"), "near" not in query)
    if found is None:
        return Picture(b"", "")
    return Picture(found[1], "image/png" if found[1].startswith(b"\x89PNG") else "image/jpeg", found[0])


def dream(inspector: Inspector, query: Query) -> Any:
    return open_session(inspector, query).dream(number(query, "step"))


def open_session(inspector: Inspector, query: Query) -> EpisodeSession:
    found = inspector.sessions.find(*episode_of(inspector, query))
    if found is None:
        raise Gone("the episode was closed to make room for others")
    return found


def episode_of(inspector: Inspector, query: Query) -> tuple[Path, int, str]:
    folder = inspector.catalog.folder(text(query, "run"))
    checkpoint = text(query, "checkpoint", "")
    if checkpoint not in ("", "best", "last", *(one["name"] for one in checkpoints(folder))):
        raise NotFoundError(f"run {folder.id} has no checkpoint '{checkpoint}'")
    return folder.path, number(query, "episode"), checkpoint


def compare(inspector: Inspector, query: Query) -> Any:
    from cadenza.lab.inspector.comparison import comparison

    wanted, chosen, missing = list(dict.fromkeys(query.get("run", []))), [], []
    if not 0 < len(wanted) <= MOST_RUNS:
        raise ConfigError(f"choose 1 to {MOST_RUNS} runs to compare")
    for one in wanted:
        try:
            chosen.append(inspector.catalog.folder(one))
        except NotFoundError:  # chosen a while ago, maybe, and deleted since
            missing.append(one)
    if not chosen:
        raise NotFoundError(f"no run '{missing[0]}'")
    with inspector.busy:
        found = comparison(chosen, query.get("metric", []), text(query, "axis", "env_steps"))
    found["notes"] += [f"{one} is not there any more" for one in missing]
    return found | {"missing": missing}


def media(inspector: Inspector, query: Query) -> Any:
    path, kind = inspector.catalog.media_file(text(query, "run"), text(query, "name"))
    return Picture(path.read_bytes(LONGEST_FILM), kind)


ANSWERS: dict[str, Callable[[Inspector, Query], Any]] = {
    "/api/runs": runs,
    "/api/sparks": sparks,
    "/api/run": run,
    "/api/stand": stand,
    "/api/curves": curves,
    "/api/origins": sources,
    "/api/episodes": episodes,
    "/api/episode": episode,
    "/api/steps": steps,
    "/api/picture": picture,
    "/api/dream": dream,
    "/api/compare": compare,
    "/api/media": media,
}
