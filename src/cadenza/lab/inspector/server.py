"""The inspector's web server. It serves this machine only, asks for a token, and changes nothing."""

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
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cadenza.base.json_text import dumps
from cadenza.errors import CadenzaError, ConfigError, NotFoundError, StorageError
from cadenza.lab import checkpoint_list
from cadenza.lab.inspector.connections import Connections, HeadReader, HeadTooLargeError, refuse
from cadenza.lab.inspector.run_catalog import Catalog
from cadenza.lab.inspector.sessions import CHILD, WAIT_SECONDS, WAITING, EpisodeSession, Sessions

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
PORT = 8765  # the default
HTTP_PORT = 80  # browsers omit it in Host and Origin
PAGE = {
    "index.html": "text/html",
    "style.css": "text/css",
    **dict.fromkeys(("app.js", "chart.js", "runs.js", "run.js", "episode.js", "compare.js"), "text/javascript"),
}
# in lab/: also used by comparisons that are written to a file
SHARED = {"plot.js": "text/javascript", "comparison_page.js": "text/javascript"}
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
MAX_MEDIA_BYTES = 1 << 28  # of a video or picture
MAX_RUNS = 200  # in one comparison, or in one request for sparklines
NICENESS = 5
MAX_ADDRESS = 32_768  # characters, enough to name MAX_RUNS runs

Query = dict[str, list[str]]


class Inspector(ThreadingHTTPServer):
    """The server, which listens on the loopback interface as soon as it is constructed."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, catalog: Catalog, port: int | None = None, trust: bool = False) -> None:
        self.catalog, self.trust, self.sessions = catalog, trust, Sessions(trust)
        self.token = secrets.token_urlsafe(24)
        self.static = {f"/static/{name}": (read(name), kind) for name, kind in (PAGE | SHARED).items()}
        self.connections = Connections()
        self.busy = threading.Lock()  # one comparison at a time, as each keeps a core busy
        super().__init__((ADDRESS, bindable(port)), Handler)
        self.names = hosts(self.server_port)

    def address(self, view: str = "") -> str:
        """Return the address to open, with the token."""
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}{view}"

    @property
    def cookie(self) -> str:
        return f"cadenza-{self.server_port}"  # a cookie is sent to every port of a host

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread if there is room for one more connection, else refuse it."""
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
        """Print the traceback, unless a browser only closed a tab in the middle of an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def server_close(self) -> None:
        self.sessions.close()
        super().server_close()


def hosts(port: int) -> set[str]:
    """Return the values of Host under which a browser may reach this server."""
    return {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == HTTP_PORT else set())


def bindable(port: int | None) -> int:
    """Return the requested port if it is free; without a request the default, or 0 (any) if that is taken."""
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
    """Read a file of the page."""
    folder = files("cadenza.lab.inspector").joinpath("page") if name in PAGE else files("cadenza.lab")
    return folder.joinpath(name).read_bytes()


def serve(inspector: Inspector) -> None:
    """Serve until Ctrl-C, at a low priority so that training runs are not slowed down."""
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)
    try:
        inspector.serve_forever(poll_interval=0.5)
    finally:
        inspector.server_close()


class Handler(BaseHTTPRequestHandler):
    """Checks each request and answers it with the page, JSON or a picture."""

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
        self.server.connections.mark_idle(self.connection)
        self._head.begin()
        try:
            super().handle_one_request()
        except HeadTooLargeError:
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", "GET"
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too large")

    def parse_request(self) -> bool:
        valid = super().parse_request()
        self.server.connections.mark_busy(self.connection)
        self.connection.settimeout(self.timeout)
        return valid

    def do_GET(self) -> None:
        if len(self.path) > MAX_ADDRESS:
            return self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, keep_blank_values=True)
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST, "the address cannot be read")
        has_token = url.path == "/" and self._is_token(query.get("token", [""])[0])
        if refusal := self._refusal(has_token):
            return self._refuse(HTTPStatus.FORBIDDEN, refusal)
        if url.path == "/":
            page, kind = self.server.static["/static/index.html"]
            cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
            return self._send(page, kind, headers={"Set-Cookie": cookie} if has_token else {})
        if url.path in self.server.static:
            return self._send(*self.server.static[url.path])
        if url.path == "/favicon.ico":
            return self._send(b"", "image/x-icon", HTTPStatus.NO_CONTENT)
        answer = ANSWERS.get(url.path)
        if answer is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        try:
            result = answer(self.server, query)
            content = b"" if isinstance(result, MediaAnswer) else dumps(result).encode(errors="replace")
        except NotFoundError as problem:
            return self._refuse(HTTPStatus.NOT_FOUND, one_line(problem))
        except GoneError as problem:
            return self._refuse(HTTPStatus.GONE, one_line(problem))
        except (CadenzaError, ValueError, KeyError) as problem:
            return self._refuse(HTTPStatus.BAD_REQUEST, one_line(problem))
        except OSError as problem:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, problem.strerror or one_line(problem))
        except Exception as problem:  # files of a run may hold anything; the other runs can still be shown
            reason = f"this cannot be shown ({type(problem).__name__}: {one_line(problem)})"
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
        if isinstance(result, MediaAnswer) and not result.content:
            return self._send(b"", "text/plain", HTTPStatus.NO_CONTENT)
        if isinstance(result, MediaAnswer):
            return self._send(result.content, result.kind, headers={"X-Step": str(result.step)})
        return self._send(content, "application/json")

    def _only_get(self) -> None:
        self.close_connection = True  # the body of the request is not read
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "the inspector answers GET only")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _only_get  # noqa: N815

    def _refusal(self, has_token: bool) -> str:
        """Return why a request is refused: it comes from another site, or by a name that points here; else ""."""
        if self.headers.get("Host", "") not in self.server.names:
            return "another host"
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{name}" for name in self.server.names}:
            return "another origin"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not has_token:
            return "requested by another site"
        if has_token or self._is_token(self._cookie()):
            return ""
        return "open the address that `cadenza inspect` printed: it holds the token"

    def _cookie(self) -> str:
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.server.cookie:
                return value
        return ""

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.server.token.encode())

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(dumps({"error": reason}).encode(), "application/json", status)

    def _send(
        self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        text = kind.startswith("text/") or kind == "application/json"
        described = {"Content-Type": f"{kind}; charset=utf-8" if text else kind, "Content-Length": str(len(content))}
        for name, value in {**HEADERS, **described, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing, since addresses contain the token."""


class GoneError(CadenzaError):
    """The episode was closed; the page opens it again if it is still being looked at."""


@dataclass(frozen=True)
class MediaAnswer:
    """A picture or video as an answer, with its MIME type; no content means that there is none."""

    content: bytes
    kind: str
    step: int = 0


# queries


def one_line(problem: BaseException) -> str:
    """Return the message of an error without line breaks."""
    text = problem.args[0] if isinstance(problem, KeyError) and problem.args else problem
    return " ".join(str(text).split("\n"))


def text(query: Query, name: str, otherwise: str | None = None) -> str:
    """Return a value of the query; without `otherwise` it is required."""
    if name in query:
        return query[name][0]
    if otherwise is None:
        raise ConfigError(f"'{name}' is missing")
    return otherwise


def number(query: Query, name: str, otherwise: int | None = None) -> int:
    value = text(query, name, None if otherwise is None else str(otherwise))
    if not value.isascii() or not value.isdigit() or len(value) > 15:
        raise ConfigError(f"'{name}' must be a whole number")
    return int(value)


def real(query: Query, name: str) -> float | None:
    return float(query[name][0]) if name in query else None


# answers


def runs(inspector: Inspector, query: Query) -> Any:
    return inspector.catalog.table(query.get("filter", []), text(query, "known", ""))


def sparks(inspector: Inspector, query: Query) -> Any:
    return inspector.catalog.sparks(query.get("run", [])[:MAX_RUNS])


def run(inspector: Inspector, query: Query) -> Any:
    return inspector.catalog.detail(text(query, "run"))


def stand(inspector: Inspector, query: Query) -> Any:
    """Return the news of a training run: its progress, and its curves from a byte of its rows on."""
    progress = inspector.catalog.progress(text(query, "run"))
    version = f"{hash(dumps(progress)):x}"
    answer: dict[str, Any] = {"version": version}
    if version != text(query, "known", ""):
        answer |= progress
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
    axis, metrics = text(query, "axis", "env_steps"), query.get("metric", [])
    return inspector.catalog.curves(
        text(query, "run"), metrics, axis, *span, number(query, "begin", 0), "quick" in query
    )


def sources(inspector: Inspector, query: Query) -> Any:
    """Return the source of each value of the config, which a child process finds out."""
    run = str(inspector.catalog.folder(text(query, "run")).path.absolute())
    command = [*CHILD, "cadenza.lab.inspector.setting_sources", run, *(["trust"] if inspector.trust else [])]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_SECONDS, check=False
        )
        return json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError, subprocess.TimeoutExpired):
        raise CadenzaError("the sources of its values cannot be determined") from None


def episodes(inspector: Inspector, query: Query) -> Any:
    page = (number(query, "begin", 0), min(500, number(query, "count", 100)))
    falling = text(query, "falling", "") == "true"
    return inspector.catalog.episodes(text(query, "run"), text(query, "sort", "episode"), falling, *page)


def episode(inspector: Inspector, query: Query) -> Any:
    which = episode_of(inspector, query)
    if "progress" in query:
        current = inspector.sessions.find(*which)
        return {"stage": "closed"} if current is None else current.progress()
    session = inspector.sessions.open(*which)
    return WAITING if session is None else session.outline()


def steps(inspector: Inspector, query: Query) -> Any:
    begin = number(query, "begin")
    return open_session(inspector, query).window(begin, begin + min(1000, number(query, "count", 200)))


def picture(inspector: Inspector, query: Query) -> Any:
    match = open_session(inspector, query).picture(text(query, "what"), number(query, "step"), "near" not in query)
    if match is None:
        return MediaAnswer(b"", "")
    step, content = match
    return MediaAnswer(content, "image/png" if content.startswith(b"\x89PNG") else "image/jpeg", step)


def dream(inspector: Inspector, query: Query) -> Any:
    return open_session(inspector, query).dream(number(query, "step"))


def open_session(inspector: Inspector, query: Query) -> EpisodeSession:
    """Return the open episode that a query names; one that was closed is an error of its own."""
    session = inspector.sessions.find(*episode_of(inspector, query))
    if session is None:
        raise GoneError("the episode was closed to make room for others")
    return session


def episode_of(inspector: Inspector, query: Query) -> tuple[Path, int, str]:
    """Return (run, number of the episode, checkpoint) of a query; a checkpoint that does not exist is refused."""
    folder = inspector.catalog.folder(text(query, "run"))
    checkpoint = text(query, "checkpoint", "")
    if checkpoint not in ("", "best", "last", *(one["name"] for one in checkpoint_list.listed(folder))):
        raise NotFoundError(f"run {folder.id} has no checkpoint '{checkpoint}'")
    return folder.path, number(query, "episode"), checkpoint


def compare(inspector: Inspector, query: Query) -> Any:
    from cadenza.lab.inspector.comparison import comparison

    names, folders, missing = list(dict.fromkeys(query.get("run", []))), [], []
    if not 0 < len(names) <= MAX_RUNS:
        raise ConfigError(f"choose 1 to {MAX_RUNS} runs to compare")
    for name in names:
        try:
            folders.append(inspector.catalog.folder(name))
        except NotFoundError:  # perhaps deleted since the page listed it
            missing.append(name)
    if not folders:
        raise NotFoundError(f"no run '{missing[0]}'")
    with inspector.busy:
        result = comparison(folders, query.get("metric", []), text(query, "axis", "env_steps"))
    result["notes"] += [f"{name} does not exist any more" for name in missing]
    return result | {"missing": missing}


def media(inspector: Inspector, query: Query) -> Any:
    path, kind = inspector.catalog.media_file(text(query, "run"), text(query, "name"))
    return MediaAnswer(path.read_bytes(MAX_MEDIA_BYTES), kind)


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
