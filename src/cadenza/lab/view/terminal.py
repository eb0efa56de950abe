"""A screen in a terminal: pictures with two pixels to a character in 24-bit colour, and the keys pressed there."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import time
from importlib.util import find_spec
from typing import Any, Self, TextIO

import numpy as np

from cadenza.base.text import printable
from cadenza.lab.view.keyboard import ENDS, PAUSES
from cadenza.lab.view.video import VideoPath, stride_for
from cadenza.lab.view.window import ClosedByUserError

MAX_FPS = 20.0  # that terminals keep up with
HOLD_SECONDS = 0.25  # a terminal reports no releases: a key counts as held for so long after it was pressed
ESCAPES = {"[A": "up", "[B": "down", "[C": "right", "[D": "left"} | {
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
}
# What other keys send: function keys of a Linux console, and sequences of the CSI and SS3 kinds, complete or not.
SEQUENCE = re.compile(r"\x1b(?:\[\[[A-E]|\[[0-?]*[ -/]*[@-Z\\-~]|O[0-9;]*[ -/:-~])")
UNFINISHED = re.compile(r"\x1b(?:\[\[?[0-?]*[ -/]*|O[0-9;]*)?\Z")
REST_SECONDS = 0.05  # to wait for the rest of a sequence; the Escape key sends none
NAMES = {" ": "space", "\r": "return", "\n": "return", "\t": "tab"}
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"  # the alternate screen without a cursor


class Terminal:
    """A terminal screen. Space pauses, Q and Escape close it; when `interactive`, only Escape does."""

    path: VideoPath | None = None

    def __init__(
        self, fps: float, title: str, interactive: bool = False, out: TextIO | None = None, keyboard: int | None = None
    ) -> None:
        self.title = title
        self.stride = stride_for(fps, MAX_FPS)
        self._seconds = self.stride / fps
        self._interactive = interactive
        self._out = sys.stderr if out is None else out
        if keyboard is None and sys.stdin.isatty() and find_spec("termios"):  # Windows: Ctrl-C alone
            keyboard = sys.stdin.fileno()
        self._keyboard = keyboard  # file descriptor, or None: no keys
        self._terminal_settings: Any = None
        self._due = 0.0
        self._keys_down: tuple[frozenset[str], float] = (frozenset(), 0.0)  # keys, and when they were pressed

    def show(self, picture: np.ndarray, caption: str) -> None:
        size = shutil.get_terminal_size()
        lines = half_blocks(fit(picture, size.columns, 2 * max(1, size.lines - 2)))
        captions = "\n".join(f"\x1b[0m\x1b[K{printable(text)[: size.columns - 1]}" for text in (caption, self.title))
        self._out.write(f"\x1b[H{lines}\n{captions}\x1b[J")
        self._out.flush()
        if not self._interactive:
            self._handle_keys()
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due, time.monotonic()) + self._seconds

    def pressed(self, wait: bool = False) -> frozenset[str]:
        """Return the names of the keys that are down; with `wait`, wait for one. Escape closes the screen."""
        keys = frozenset(self._read(wait))
        if "escape" in keys:
            raise ClosedByUserError
        now = time.monotonic()
        if keys:
            self._keys_down = (keys, now)
        elif now - self._keys_down[1] > HOLD_SECONDS:
            return frozenset()
        return self._keys_down[0]

    def __enter__(self) -> Self:
        if self._keyboard is not None and os.isatty(self._keyboard):
            import termios
            import tty

            self._terminal_settings = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._out.write(ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write(LEAVE)
        self._out.flush()
        if self._terminal_settings is not None:
            import termios

            termios.tcsetattr(self._keyboard or 0, termios.TCSADRAIN, self._terminal_settings)

    def _handle_keys(self) -> None:
        """Carry out the keys that close or pause; while paused, wait for one."""
        keys, paused = self._read(False), False
        while keys:
            for key in keys:
                if key in ENDS:
                    raise ClosedByUserError
                paused ^= key in PAUSES
            keys = self._read(True) if paused else []

    def _read(self, wait: bool) -> list[str]:
        """Return the names of the keys pressed since the last call, in order."""
        if self._keyboard is None or not select.select([self._keyboard], [], [], None if wait else 0)[0]:
            return []
        data = os.read(self._keyboard, 1024)
        if not data:  # the input was closed
            raise ClosedByUserError
        text = data.decode(errors="replace")
        while UNFINISHED.search(text) and select.select([self._keyboard], [], [], REST_SECONDS)[0]:
            rest = os.read(self._keyboard, 1024)
            if not rest:
                break
            text += rest.decode(errors="replace")
        return key_names(text)


def key_names(text: str) -> list[str]:
    """Translate what a terminal sends to names of keys; keys without a name are left out."""
    keys = []
    while text:
        if (sequence := SEQUENCE.match(text)) or (len(text) > 1 and (sequence := UNFINISHED.match(text))):
            if (name := ESCAPES.get(sequence[0][1:])) is not None:
                keys.append(name)
            text = text[sequence.end() :]
        else:
            keys.append("escape" if text[0] == "\x1b" else NAMES.get(text[0], text[0].lower()))
            text = text[1:]
    return keys


def fit(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """Scale a picture to the largest size that fits, with an even height."""
    from PIL import Image

    image = Image.fromarray(picture)
    scale = min(width / image.width, height / image.height)
    size = (max(1, int(image.width * scale)), max(2, int(image.height * scale) // 2 * 2))
    resampling = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return np.asarray(image.resize(size, resampling))


def half_blocks(picture: np.ndarray) -> str:
    """Return a picture [2h, w, 3] as h lines of w characters; the lower of two pixels is a character's background."""
    lines = []
    for upper, lower in zip(picture[::2].tolist(), picture[1::2].tolist(), strict=True):
        line, colours = [], None
        for top, bottom in zip(upper, lower, strict=True):
            if (top, bottom) != colours:
                colours = (top, bottom)
                line.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*top, *bottom))
            line.append("▀")
        lines.append("".join(line) + "\x1b[0m\x1b[K")
    return "\n".join(lines)
