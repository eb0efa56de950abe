"""The inspector's server in this process, with a client that uses real sockets."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cadenza.lab.inspector.messages import Message, State, TableRows
from cadenza.lab.inspector.run_catalog import Catalog
from cadenza.lab.inspector.server import ADDRESS, Inspector


class Client:
    """A client that sends requests as the page does, or others for a test."""

    def __init__(self, server: Inspector) -> None:
        self.server = server
        self.cookie = f"{server.cookie}={server.token}"

    def send(
        self, target: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, Any, bytes]:
        """Send a request with an unchanged target; return status, headers and content."""
        connection = http.client.HTTPConnection(ADDRESS, self.server.server_port, timeout=60)
        connection._validate_path = lambda path: None  # type: ignore[attr-defined]  # hostile ones, too
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            own = {"Host": f"{ADDRESS}:{self.server.server_port}", "Cookie": self.cookie, **(headers or {})}
            for name, value in own.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def ask(self, what: str, **query: Any) -> Any:
        status, _, content = self.send(f"/api/{what}?{urlencode(query, doseq=True)}")
        assert status == 200, content
        return json.loads(content)


class Sent:
    """The messages of the child process that plays an episode, collected in this process."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        if isinstance(message, State):
            self.state |= message.changes
        else:
            self._messages.append(message)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self._messages if isinstance(message, kind)]

    def pieces(self, table: str) -> list[list[dict[str, Any]]]:
        return [message.rows for message in self.of(TableRows) if message.table == table]

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for piece in self.pieces(table) for row in piece]


@contextmanager
def inspecting(root: Path, trust: bool = False) -> Iterator[Client]:
    server = Inspector(Catalog(root), port=0, trust=trust)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Client(server)
    finally:
        server.shutdown()
        server.server_close()
