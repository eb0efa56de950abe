"""A Weights & Biases server on loopback with what workspaces, sweep agents and lists of runs need."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

RUN = {
    "user": {"name": "me", "username": "me"},
    "tags": [],
    "state": "finished",
    "config": "{}",
    "createdAt": "2026-01-01T00:00:00Z",
    "projectId": 1,
    "systemMetrics": "{}",
    "summaryMetrics": "{}",
    "historyLineCount": 1,
    "sweepName": None,
    "group": None,
    "jobType": None,
    "readOnly": None,
    "heartbeatAt": None,
    "description": None,
    "commit": None,
    "historyKeys": None,
}


class WandbServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.project = True  # whether the project exists
        self.views: dict[str, dict[str, Any]] = {}
        self.saved = 0
        self.runs = ["newest", "older", "oldest"]
        self.command: list[str] = []  # what an agent of the sweep runs
        self.trials: list[dict[str, Any]] = []  # settings of the remaining trials

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertView" in query:
            self.saved += 1
            view = self.views.setdefault(variables["name"], {"id": f"view-{len(self.views)}"})
            view |= {"name": variables["name"], "displayName": variables["displayName"], "spec": variables["spec"]}
            return {"upsertView": {"view": {"id": view["id"], "name": view["name"]}, "inserted": True}}
        if "createAgent" in query:
            return {"createAgent": {"agent": {"id": "agent"}}}
        if "agentHeartbeat" in query:
            return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(self.commands())}}
        if "project(" in query:
            return {"project": self.within(query, variables) if self.project else None}
        return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    def within(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a query about the project."""
        if "sweep(" in query:
            config = yaml.safe_dump({"method": "random", "command": self.command})
            return {"sweep": {"id": "1", "name": "abc123", "config": config, "runs": {"edges": []}}}
        if "allViews" in query:
            view = self.views.get(variables["viewName"])
            return {"allViews": {"edges": [{"node": view}] if view else []}}
        edges = [{"node": {**RUN, "id": name, "name": name, "displayName": name}, "cursor": name} for name in self.runs]
        over = {"endCursor": None, "hasNextPage": False}
        return {
            "internalId": "1",
            "runCount": len(edges),
            "readOnly": False,
            "runs": {"edges": edges, "pageInfo": over},
        }

    def commands(self) -> list[dict[str, Any]]:
        """Return the next trial as a command, or nothing."""
        if not self.trials:
            return []
        args = {key: {"value": value} for key, value in self.trials.pop(0).items()}
        return [{"id": "1", "type": "run", "run_id": "trial", "program": "", "args": args}]


class Answer(BaseHTTPRequestHandler):
    server: WandbServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/graphql":  # W&B's telemetry
            self.send_error(404)
            return
        request = json.loads(content)
        reply = json.dumps({"data": self.server.answer(request["query"], request.get("variables") or {})}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None: ...
