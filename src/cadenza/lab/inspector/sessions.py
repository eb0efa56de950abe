"""The episodes that are open in pages: a child process for each, the messages it has sent, and limits on both."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from cadenza.lab.inspector.messages import Advantages, Dream, Message, Picture, Request, State, TableRows, receive, send

MAX_OPEN = 2  # episodes at a time; the least recently used makes room
IN_USE_SECONDS = 3.0  # after a page's last request; it polls more often while the episode is played
PICTURE_BYTES = 48 << 20  # of requested pictures, per episode
AHEAD = 40  # steps whose pictures are requested along with one, as the page will play on
WAIT_SECONDS = 60.0
FACTS_SECONDS = 2.0  # to wait for a child to start
CHILD = (sys.executable, "-P", "-m")  # -P: files in the current folder are not imported
WAITING: dict[str, Any] = {"notes": [], "stage": "waiting", "facts": None, "done": 0, "judged": 0, "series": {}}
TRIES = 3  # requests for a picture: another request may have come in between


class EpisodeSession:
    """One open episode. A thread stores the child's messages; answers to pages read them."""

    def __init__(self, run: Path, episode: int, checkpoint: str, trust: bool) -> None:
        arguments = [str(run.absolute()), str(episode), checkpoint, "trust" if trust else ""]
        command = [*CHILD, "cadenza.lab.inspector.player", *arguments]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._change = threading.Condition()
        self.last_look = time.monotonic()
        self._requests: list[Request] = []  # that are not answered yet
        self._looking = 0  # the step whose picture was requested last
        self.facts: dict[str, Any] | None = None
        self.tables: dict[str, list[dict[str, Any]]] = {"steps": [], "opinions": []}
        self.advantages: dict[str, list[list[float]]] = {}
        self.state: dict[str, Any] = {"notes": [], "stage": "starting"}
        self.dreams: dict[int, Dream] = {}
        self._pictures: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._on_request = 0  # bytes of the pictures that are not `evenly`; they are dropped first
        self._evenly: set[tuple[str, int]] = set()
        threading.Thread(target=self._listen, daemon=True).start()

    # messages of the child

    def _listen(self) -> None:
        """Store messages until the child ends."""
        stream = self._child.stdout
        assert stream is not None
        try:
            for message in receive(stream):
                with self._change:
                    self._take(message)
                    self._change.notify_all()
        finally:
            with self._change:
                if self.state["stage"] != "ready" and "failed" not in self.state:
                    self.state["failed"] = "the process that plays the episode again ended"
                self.state["stage"] = "closed"
                self._change.notify_all()
            stream.close()
            self._child.wait()

    def _take(self, message: Message) -> None:
        match message:
            case State(changes):
                self.facts = changes.pop("facts", self.facts)
                self.state |= changes
            case TableRows(table, rows):
                self.tables[table] += rows
            case Advantages(group, values):
                self.advantages[group] = values
            case Picture():
                self._store(message)
            case Dream():
                self.dreams[message.step] = message
            case Request():
                self._requests = [one for one in self._requests if one != message]

    def _store(self, picture: Picture) -> None:
        key = (picture.what, picture.step)
        old = self._pictures.pop(key, b"")
        self._pictures[key] = picture.content
        if picture.evenly:
            self._evenly.add(key)
            return
        self._on_request += len(picture.content) - len(old)
        for other in list(self._pictures):
            if self._on_request <= PICTURE_BYTES:
                break
            if other not in self._evenly and other != key:
                self._on_request -= len(self._pictures.pop(other))

    # answers to pages

    def outline(self) -> dict[str, Any]:
        """Return the progress and, by group, the numbers of every step that are plotted."""
        with self._change:
            self._change.wait_for(lambda: self.facts is not None or "failed" in self.state, FACTS_SECONDS)
            series: dict[str, Any] = {}
            for group in (self.facts or {}).get("groups", {}):
                values, expected = (
                    [step.get(group, {}).get(key) for step in self.tables["opinions"]] for key in ("value", "reward")
                )
                series[group] = {
                    "reward": [step[group].get("reward") for step in self.tables["steps"]],
                    "value": values if any(values) else [],
                    "expected": expected if any(expected) else [],
                    "advantage": self.advantages.get(group, []),
                }
            return {**self.progress(), "facts": self.facts, "series": series}

    def progress(self) -> dict[str, Any]:
        with self._change:
            return {**self.state, "done": len(self.tables["steps"]), "judged": len(self.tables["opinions"])}

    def window(self, begin: int, end: int) -> dict[str, Any]:
        """Return the steps from `begin` to `end`, and the policy's opinions about them."""
        with self._change:
            return {"begin": begin, **{name: rows[begin:end] for name, rows in self.tables.items()}}

    def picture(self, what: str, step: int, exact: bool) -> tuple[int, bytes] | None:
        """Return (step, picture): of this step if it is `exact` and can be had, else of the nearest step before it."""
        with self._change:
            if self.facts is None or not 0 <= step <= self.facts["length"]:
                return None
            key, tries = (what, step), 0
            self._looking = step if exact else self._looking
            while exact and key not in self._pictures and not self.over and tries < TRIES:
                if not self._is_requested(step):
                    if tries and abs(step - self._looking) > AHEAD:  # the page is elsewhere by now
                        break
                    self._send(Request("show", step, min(step + AHEAD, self.facts["length"])))
                    tries += 1
                self._change.wait_for(lambda: key in self._pictures or not self._is_requested(step), WAIT_SECONDS)
            if key not in self._pictures:
                before = [at for other, at in self._pictures if other == what and at <= step]
                if not before:
                    return None
                key = (what, max(before))
            self._pictures.move_to_end(key)
            return key[1], self._pictures[key]

    def dream(self, step: int) -> dict[str, Any]:
        """Return what the world model imagines at a step."""
        with self._change:
            if step not in self.dreams:
                request = Request("imagine", step)
                self._send(request)
                self._change.wait_for(
                    lambda: step in self.dreams or request not in self._requests or self.over, WAIT_SECONDS
                )
            return vars(self.dreams[step]) if step in self.dreams else {"problem": "nothing was imagined"}

    def _is_requested(self, step: int) -> bool:
        """Return whether a picture of the step has been requested."""
        return not self.over and any(one.begin <= step <= one.end for one in self._requests if one.what == "show")

    def _send(self, request: Request) -> None:
        if request in self._requests or self._child.stdin is None or self.over:
            return
        self._requests.append(request)
        try:
            send(self._child.stdin, request)
        except (OSError, ValueError):  # the child has just ended, or the session was closed
            self._requests.remove(request)

    @property
    def over(self) -> bool:
        """Whether the child has ended."""
        return bool(self.state["stage"] == "closed")

    @property
    def in_use(self) -> bool:
        """Whether the episode is being played while a page waits for it."""
        return self.state["stage"] not in ("ready", "closed") and time.monotonic() - self.last_look < IN_USE_SECONDS

    def close(self) -> None:
        """Kill the child."""
        self._child.kill()
        self._child.wait()
        with suppress(OSError):
            if self._child.stdin is not None:
                self._child.stdin.close()


class Sessions:
    """The open episodes, by run, episode and checkpoint."""

    def __init__(self, trust: bool) -> None:
        self._trust = trust
        self._open: OrderedDict[tuple[Path, int, str], EpisodeSession] = OrderedDict()
        self._lock = threading.RLock()

    def find(self, run: Path, episode: int, checkpoint: str) -> EpisodeSession | None:
        """Return the episode if it is open; asking for progress must not start it again."""
        key = (run, episode, checkpoint)
        with self._lock:
            session = self._open.get(key)
            if session is not None:
                session.last_look = time.monotonic()
                self._open.move_to_end(key)
            return session

    def open(self, run: Path, episode: int, checkpoint: str) -> EpisodeSession | None:
        """Return the episode, and start it unless its child is alive; return None while there is no room for it."""
        key = (run, episode, checkpoint)
        with self._lock:
            session = self.find(*key)
            if session is not None and not session.over:
                return session
            if session is not None:
                self._open.pop(key).close()
            while len(self._open) >= MAX_OPEN:
                idle = next((other for other, one in self._open.items() if not one.in_use), None)
                if idle is None:
                    return None
                self._open.pop(idle).close()
            self._open[key] = EpisodeSession(*key, self._trust)
            return self._open[key]

    def close(self) -> None:
        """Close every episode."""
        with self._lock:
            for session in self._open.values():
                session.close()
            self._open.clear()
