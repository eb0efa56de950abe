"""Episodes that are being looked at: a child process each, what it told so far, and a bound on all of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cadenza.errors import CadenzaError

OPEN = 2  # episodes at once; the one not looked at for longest makes room
LOOKED_AT = 3.0  # seconds after a page last asked: it asks more often than that while the episode is played
PICTURE_BYTES = 48 << 20  # kept of each
AHEAD = 40  # steps shown after one that was asked for: it will be played on
WAIT_SECONDS = 60.0
FACTS_SECONDS = 2.0  # that an answer waits for a child to begin
CHILD = (sys.executable, "-P", "-m")  # nothing that lies in the current folder takes a module's place
WAITING: dict[str, Any] = {"notes": [], "stage": "waiting", "facts": None, "done": 0, "judged": 0, "series": {}}
TRIES = 3  # a picture is asked for: another wish may have come in between


class Replay:
    """One episode. A thread takes in what the child tells; requests read it."""

    def __init__(self, run: Path, episode: int, checkpoint: str, trust: bool) -> None:
        arguments = [str(run.absolute()), str(episode), checkpoint, "trust" if trust else ""]
        command = [*CHILD, "cadenza.lab.inspector.player", *arguments]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._told = threading.Condition()
        self.asked = time.monotonic()
        self._asked: list[dict[str, Any]] = []
        self._looking = 0  # at the step whose picture was asked for last
        self.facts: dict[str, Any] | None = None
        self.steps: list[dict[str, Any]] = []
        self.opinions: list[dict[str, Any]] = []
        self.advantages: dict[str, list[list[float]]] = {}
        self.state: dict[str, Any] = {"notes": [], "stage": "starting"}
        self.dreams: dict[int, dict[str, Any]] = {}
        self._pictures: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._extra = 0  # bytes of pictures that were asked for: the first to go
        self._evenly: set[tuple[str, int]] = set()
        threading.Thread(target=self._listen, daemon=True).start()

    # taking in

    def _listen(self) -> None:
        stream = self._child.stdout
        assert stream is not None
        try:
            for head, payload in messages(stream):
                with self._told:
                    self._take(head.pop("kind"), head, payload)
                    self._told.notify_all()
        finally:
            with self._told:
                if self.state["stage"] != "ready" and "failed" not in self.state:
                    self.state["failed"] = "the process that plays the episode again ended"
                self.state["stage"] = "closed"
                self._told.notify_all()
            stream.close()
            self._child.wait()

    def _take(self, kind: str, head: dict[str, Any], payload: bytes) -> None:
        if kind == "episode":
            self.facts, self.state["stage"] = head, "playing"
        elif kind == "steps":
            self.steps += head["steps"]
        elif kind == "opinions":
            self.opinions += head["steps"]
        elif kind == "picture":
            self._keep((head["what"], head["step"]), payload, head["evenly"])
        elif kind == "happened":
            self.state |= head | {"stage": "judging"}
        elif kind == "judge":
            self.state |= head
        elif kind == "advantages":
            self.advantages[head["group"]] = head["values"]
            self.state.setdefault("credit", {})[head["group"]] = head["credit"]
        elif kind == "note":
            self.state["notes"].append(head["text"])
        elif kind == "dream":
            self.dreams[head["step"]] = head
            if payload:
                self._keep(("dream", head["step"]), payload)
        elif kind == "answered":
            self._asked = [one for one in self._asked if one != head["asked"]]
        elif kind == "failed":
            self.state["failed"] = head["message"]
        elif kind == "ready":
            self.state["stage"] = "ready"

    def _keep(self, key: tuple[str, int], payload: bytes, evenly: bool = False) -> None:
        old = self._pictures.pop(key, b"")
        self._pictures[key] = payload
        if evenly:
            self._evenly.add(key)
            return
        self._extra += len(payload) - len(old)
        for other in list(self._pictures):
            if self._extra <= PICTURE_BYTES:
                break
            if other not in self._evenly and other != key:
                self._extra -= len(self._pictures.pop(other))

    # answering

    def outline(self) -> dict[str, Any]:
        """How far it is, and every step's numbers that plots need, by group and agent."""
        with self._told:
            self._told.wait_for(lambda: self.facts is not None or "failed" in self.state, FACTS_SECONDS)
            done, judged = len(self.steps), len(self.opinions)
            series: dict[str, Any] = {}
            for group in (self.facts or {}).get("groups", {}):
                rewards = [step[group].get("reward") for step in self.steps]
                values = [step.get(group, {}).get("value") for step in self.opinions]
                expected = [step.get(group, {}).get("reward") for step in self.opinions]
                series[group] = {
                    "reward": rewards,
                    "value": values if any(values) else [],
                    "expected": expected if any(expected) else [],
                    "advantage": self.advantages.get(group, []),
                }
            return {**self.state, "facts": self.facts, "done": done, "judged": judged, "series": series}

    def progress(self) -> dict[str, Any]:
        with self._told:
            return {**self.state, "done": len(self.steps), "judged": len(self.opinions)}

    def window(self, begin: int, end: int) -> dict[str, Any]:
        """All that is known of some steps."""
        with self._told:
            steps = self.steps[begin:end]
            return {"begin": begin, "steps": steps, "opinions": self.opinions[begin : begin + len(steps)]}

    def picture(self, what: str, step: int, exact: bool) -> tuple[int, bytes] | None:
        """The step's picture, asked for if it is not there; else the nearest one before it that is."""
        with self._told:
            if self.facts is None or not 0 <= step <= self.facts["length"]:
                return None
            key, tries = (what, step), 0
            self._looking = step if exact else self._looking
            while exact and key not in self._pictures and self.state["stage"] != "closed" and tries < TRIES:
                if not self._covered(step):
                    if tries and abs(step - self._looking) > AHEAD:  # somebody is elsewhere by now
                        break
                    self._ask({"show": [step, min(step + AHEAD, self.facts["length"])]})
                    tries += 1
                self._told.wait_for(lambda: key in self._pictures or not self._covered(step), WAIT_SECONDS)
            if key not in self._pictures:
                before = [at for other, at in self._pictures if other == what and at <= step]
                if not before:
                    return None
                key = (what, max(before))
            self._pictures.move_to_end(key)
            return key[1], self._pictures[key]

    def dream(self, step: int) -> dict[str, Any]:
        with self._told:
            if step not in self.dreams:
                wish = {"imagine": step}
                self._ask(wish)
                self._told.wait_for(lambda: step in self.dreams or wish not in self._asked or self.over, WAIT_SECONDS)
            return self.dreams.get(step) or {"problem": "nothing was imagined"}

    def _covered(self, step: int) -> bool:
        """Whether a picture of the step is on its way."""
        alive = self.state["stage"] != "closed"
        return alive and any(one["show"][0] <= step <= one["show"][1] for one in self._asked if "show" in one)

    def _ask(self, what: dict[str, Any]) -> None:
        if what in self._asked or self._child.stdin is None or self.state["stage"] == "closed":
            return
        self._asked.append(what)
        try:
            self._child.stdin.write(json.dumps(what).encode() + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError):  # it ended, or was closed just now
            self._asked.remove(what)

    @property
    def over(self) -> bool:
        """Whether its child ended: nothing more will be told."""
        return bool(self.state["stage"] == "closed")

    @property
    def in_use(self) -> bool:
        """Whether it is being played while a page waits for it."""
        return self.state["stage"] not in ("ready", "closed") and time.monotonic() - self.asked < LOOKED_AT

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        with suppress(OSError):
            if self._child.stdin is not None:
                self._child.stdin.close()


def messages(stream: IO[bytes]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What a child tells until it ends; one that it did not finish telling is nothing."""
    while len(size := stream.read(4)) == 4:
        length = int.from_bytes(size, "big")
        text = stream.read(length)
        if len(text) < length:
            return
        head = json.loads(text)
        length = head.pop("bytes")
        payload = stream.read(length)
        if len(payload) < length:
            return
        yield head, payload


class Replays:
    """Those that are open, by run, episode and checkpoint."""

    def __init__(self, trust: bool) -> None:
        self._trust = trust
        self._open: OrderedDict[tuple[str, int, str], Replay] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, run: Path, episode: int, checkpoint: str) -> Replay | None:
        """The episode if it is open; asking how far it is must not begin it again."""
        key = (str(run), episode, checkpoint)
        with self._lock:
            replay = self._open.get(key)
            if replay is not None:
                replay.asked = time.monotonic()
                self._open.move_to_end(key)
            return replay

    def open(self, run: Path, episode: int, checkpoint: str) -> Replay | None:
        """The episode, begun if need be; nothing while there is no room for it."""
        found = self.find(run, episode, checkpoint)
        if found is not None and not found.over:
            return found
        key = (str(run), episode, checkpoint)
        with self._lock:
            if key in self._open and self._open[key].over:  # once more: a child may have been killed
                self._open.pop(key).close()
            while key not in self._open and len(self._open) >= OPEN:
                idle = next((other for other, replay in self._open.items() if not replay.in_use), None)
                if idle is None:
                    return None
                self._open.pop(idle).close()
            if key not in self._open:
                self._open[key] = Replay(run, episode, checkpoint, self._trust)
            return self._open[key]

    def close(self) -> None:
        with self._lock:
            for replay in self._open.values():
                replay.close()
            self._open.clear()


def origins(run: Path, trust: bool) -> dict[str, Any]:
    """Where each value of the config came from, by a child of its own."""
    command = [*CHILD, "cadenza.lab.inspector.setting_sources", str(run.absolute()), *(["trust"] if trust else [])]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_SECONDS, check=False)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError, subprocess.TimeoutExpired):
        raise CadenzaError("where its values came from cannot be told") from None
    return found
