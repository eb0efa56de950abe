"""A Hugging Face Hub on loopback with what publishing and loading need: models, commits, large files."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_loopback"


@dataclass
class Repo:
    private: bool
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)  # (sha, files by path), oldest first

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)

    def commit(self, files: dict[str, bytes]) -> str:
        content = repr([(name, hashlib.sha256(files[name]).hexdigest()) for name in sorted(files)])
        sha = hashlib.sha1(f"{len(self.commits)} {content}".encode()).hexdigest()
        self.commits.append((sha, files))
        return sha


@dataclass
class Hub:
    """The contents of the hub, and the requests it received."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)  # by sha256
    requests: list[str] = field(default_factory=list)


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".mp4", ".gif"))


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()

    class Handler(Answering):
        service = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()


class Answering(BaseHTTPRequestHandler):
    service: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.service.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        repo = self.service.repos.get("/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2]))
        if repo is not None and repo.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, {"error": "Invalid username or password."}, {"X-Error-Code": "RepoNotFound"})
        elif parts[:2] == ["api", "models"]:
            self.about("/".join(parts[2:4]), parts[4:])
        elif len(parts) > 4 and parts[2] == "resolve":
            self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.answer(404, {"error": path})

    def about(self, name: str, rest: list[str]) -> None:
        repo = self.service.repos.get(name)
        commit = None if repo is None else repo.at(rest[1] if len(rest) > 1 else "main")
        if commit is None:
            self.answer(
                404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound" if repo is None else "RevisionNotFound"}
            )
        elif rest[:1] == ["tree"]:
            self.answer(200, [entry(path, content) for path, content in sorted(commit[1].items())])
        else:
            siblings = [{"rfilename": path} for path in sorted(commit[1])]
            assert repo is not None
            description = {"id": name, "modelId": name, "sha": commit[0], "private": repo.private, "tags": []}
            self.answer(200, description | {"siblings": siblings})

    def file(self, name: str, revision: str, path: str) -> None:
        repo = self.service.repos.get(name)
        commit = None if repo is None else repo.at(revision)
        if commit is None or path not in commit[1]:
            self.answer(404, {"error": path}, {"X-Error-Code": "EntryNotFound"})
            return
        content = commit[1][path]
        etag = hashlib.sha256(content).hexdigest() if is_large(path) else git_oid(content)
        self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit[0]})

    def do_POST(self) -> None:
        body = self.body()
        path = unquote(urlsplit(self.path).path)
        self.service.requests.append(f"POST {path}")
        if path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            request = json.loads(body)
            private = bool(request.get("private")) or request.get("visibility") == "private"
            self.create("/".join(filter(None, (request.get("organization"), request["name"]))), private)
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.answer(
                200, {"transfer": "basic", "objects": [self.action(one) for one in json.loads(body)["objects"]]}
            )
        else:
            name, does = "/".join(path.split("/")[3:5]), path.split("/")[5]
            files = self.service.repos[name].commits[-1][1]
            if does == "preupload":
                uploads = [stored(one["path"], files) for one in json.loads(body)["files"]]
                self.answer(200, {"files": uploads})
            elif does == "commit":
                self.commit(name, dict(files), [json.loads(line) for line in body.splitlines() if line])
            else:
                self.answer(404, {"error": path})

    def create(self, name: str, private: bool) -> None:
        if name in self.service.repos:
            self.answer(409, {"error": "You already created this model repo", "url": f"{self.service.url}/{name}"})
            return
        repo = self.service.repos[name] = Repo(private)
        repo.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        self.answer(200, {"url": f"{self.service.url}/{name}", "name": name, "id": name})

    def action(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["oid"] in self.service.large:
            return one
        return one | {"actions": {"upload": {"href": f"{self.service.url}/large/{one['oid']}", "header": {}}}}

    def do_PUT(self) -> None:
        body = self.body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.service.large[oid] = body
        self.answer(200, {})

    def commit(self, name: str, files: dict[str, bytes], lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.service.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = self.service.repos[name].commit(files)
        url = f"{self.service.url}/{name}/commit/{sha}"
        self.answer(200, {"commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def answer(self, code: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def entry(path: str, content: bytes) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
    if is_large(path):
        result["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return result


def stored(path: str, files: dict[str, bytes]) -> dict[str, Any]:
    """Return how a file must be uploaded, and the version that is stored."""
    result: dict[str, Any] = {"path": path, "uploadMode": "lfs" if is_large(path) else "regular", "shouldIgnore": False}
    if path in files:
        result["oid"] = hashlib.sha256(files[path]).hexdigest() if is_large(path) else git_oid(files[path])
    return result
