"""A Chromium that is controlled through its DevTools protocol over two pipes, without a driver or packages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Chromium reads from descriptor 3 and writes to 4
START = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reading, 3), os.dup2(writing, 4), os.close(reading), os.close(writing)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds to wait for a condition


def program() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """A browser with one tab; `problems` are all errors of its console and its scripts."""

    def __init__(self, home: Path, width: int = 1400, height: int = 900) -> None:
        ours, theirs = os.pipe(), os.pipe()  # to it, from it
        path = program()
        assert path is not None
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        options += ["--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe"]
        command = [sys.executable, "-c", START, str(ours[0]), str(theirs[1])]
        command += [path, *options, f"--user-data-dir={home}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = os.fdopen(ours[1], "wb"), theirs[0]
        self._number, self._rest, self._session = 0, b"", ""
        self.problems: list[str] = []
        target = next(one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(width, height)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._to.close()
        os.close(self._from)

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, theme: str) -> None:
        """Set the preferred colour scheme: `dark` or `light`."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def open(self, address: str) -> None:
        self._call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        reply = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, script: str, accept: Callable[[Any], bool] = bool) -> Any:
        """Wait until the value of an expression is accepted; return it."""
        end = time.monotonic() + PATIENCE
        while True:
            value = self.run(script)
            if accept(value):
                return value
            assert time.monotonic() < end, f"{script} stayed {value!r}; {self.problems}; {self.text()[:500]}"
            self.run("new Promise((done) => setTimeout(done, 60))")

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def key(self, name: str, shift: bool = False) -> None:
        codes = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, " ": 32}
        event = {"key": name, "windowsVirtualKeyCode": codes.get(name, 0), "modifiers": 8 if shift else 0}
        typed = {"text": name} if len(name) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """Click into the middle of the first element that matches."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.until(f"!!{place}")
        script = f"(() => {{ const e = {place}; e.scrollIntoView({{block: 'center'}}); const b = "
        box = self.run(script + "e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _hear(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str([one.get("value") for one in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
