"""Pictures in a terminal, two pixels to a character in 24-bit colour, and the keys pressed there."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import time
from typing import Any, Self, TextIO

import numpy as np

from cadenza.base.text import printable
from cadenza.lab.view.keyboard import ENDS, PAUSES
from cadenza.lab.view.video import Place, stride_for
from cadenza.lab.view.window import Closed

MOST = 20.0  # pictures a second that terminals keep up with
HOLD_SECONDS = 0.25  # a terminal tells presses alone: a key counts as held for so long after one
ESCAPES = {"[A": "up", "[B": "down", "[C": "right", "[D": "left"} | {
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
}
# What other keys send: a function key of a Linux console, sequences of the two kinds, one that is not whole yet.
SEQUENCE = re.compile(r"\x1b(?:\[\[[A-E]|\[[0-?]*[ -/]*[@-Z\\-~]|O[0-9;]*[ -/:-~])")
UNFINISHED = re.compile(r"\x1b(?:\[\[?[0-?]*[ -/]*|O[0-9;]*)?\Z")
REST_SECONDS = 0.05  # the rest of a sequence comes at once; Escape comes alone
NAMES = {" ": "space", "\r": "return", "\n": "return", "\t": "tab"}
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"  # another page, without a cursor; back


class Terminal:
    """Space pauses, Q and Escape end it; where a person plays (`played`), Escape alone does."""

    path: Place | None = None

    def __init__(
        self, fps: float, title: str, played: bool = False, out: TextIO | None = None, keyboard: int | None = None
    ) -> None:
        self.title = title
        self.stride = stride_for(fps, MOST)
        self._seconds = self.stride / fps
        self._played = played
        self._out = sys.stderr if out is None else out
        self._keyboard = keyboard if keyboard is not None else sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: Any = None
        self._due = 0.0
        self._held: tuple[frozenset[str], float] = (frozenset(), 0.0)

    def show(self, picture: np.ndarray, caption: str) -> None:
        size = shutil.get_terminal_size()
        lines = half_blocks(fitted(picture, size.columns, 2 * max(1, size.lines - 2)))
        below = "\n".join(f"\x1b[0m\x1b[K{printable(text)[: size.columns - 1]}" for text in (caption, self.title))
        self._out.write(f"\x1b[H{lines}\n{below}\x1b[J")
        self._out.flush()
        if not self._played:
            self._heed()
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due, time.monotonic()) + self._seconds

    def pressed(self, wait: bool = False) -> frozenset[str]:
        """Keys that are down; `wait` for one. Escape ends the game."""
        keys = frozenset(self._read(wait))
        if "escape" in keys:
            raise Closed
        now = time.monotonic()
        if keys:
            self._held = (keys, now)
        elif now - self._held[1] > HOLD_SECONDS:
            return frozenset()
        return self._held[0]

    def __enter__(self) -> Self:
        if self._keyboard is not None and os.isatty(self._keyboard):
            import termios
            import tty

            self._before = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._out.write(ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write(LEAVE)
        self._out.flush()
        if self._before is not None:
            import termios

            termios.tcsetattr(self._keyboard or 0, termios.TCSADRAIN, self._before)

    def _heed(self) -> None:
        """Obey keys; while paused, wait for one."""
        keys, paused = self._read(False), False
        while keys:
            for key in keys:
                if key in ENDS:
                    raise Closed
                paused ^= key in PAUSES
            keys = self._read(True) if paused else []

    def _read(self, wait: bool) -> list[str]:
        """Names of the keys that have come in since, in their order."""
        if self._keyboard is None or not select.select([self._keyboard], [], [], None if wait else 0)[0]:
            return []
        told = os.read(self._keyboard, 1024)
        if not told:  # closed: nobody is there
            raise Closed
        text = told.decode(errors="replace")
        while UNFINISHED.search(text) and select.select([self._keyboard], [], [], REST_SECONDS)[0]:
            rest = os.read(self._keyboard, 1024)
            if not rest:
                break
            text += rest.decode(errors="replace")
        return named(text)


def named(text: str) -> list[str]:
    """What a terminal sends, as names of keys; keys that have none do nothing."""
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


def fitted(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """The picture as large as fits, its height even."""
    from PIL import Image

    image = Image.fromarray(picture)
    scale = min(width / image.width, height / image.height)
    size = (max(1, int(image.width * scale)), max(2, int(image.height * scale) // 2 * 2))
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return np.asarray(image.resize(size, how))


def half_blocks(picture: np.ndarray) -> str:
    """[2h, w, 3] as h lines of w characters: the upper pixel is the character's colour, the lower what is behind it."""
    lines = []
    for upper, lower in zip(picture[::2].tolist(), picture[1::2].tolist(), strict=True):
        line, before = [], None
        for top, bottom in zip(upper, lower, strict=True):
            if (top, bottom) != before:
                line.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*top, *bottom))
                before = (top, bottom)
            line.append("▀")
        lines.append("".join(line) + "\x1b[0m\x1b[K")
    return "\n".join(lines)
