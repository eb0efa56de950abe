"""How the inspector's child tells what it sees: messages, numbers short enough for a page, pictures as files."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from gymnasium import spaces

from cadenza.base.json_text import dumps
from cadenza.trees import leaves

NUMBERS = 64  # of an observation or action that are told, at most
SMALL = 256  # pixels: what is smaller in both directions is kept as it is, without the losses of JPEG
LARGEST = 960  # pixels of a picture in either direction
NEAR = 60  # steps ahead that are sooner reached than by beginning anew

Tell = Callable[..., None]


def described(space: spaces.Space[Any]) -> dict[str, Any]:
    """An action space in words that the page knows."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "several", "counts": space.nvec.ravel().tolist()}
    if isinstance(space, spaces.Box):
        low, high = (np.where(np.isfinite(x), x, 0.0).ravel()[:NUMBERS].tolist() for x in (space.low, space.high))
        return {"kind": "box", "low": low, "high": high}
    return {"kind": "switches", "n": int(np.prod(space.shape or (1,)))}


def as_picture(leaf: np.ndarray) -> np.ndarray | None:
    """Bytes in the shape of an image, [H, W, C] or [C, H, W]; of a stack of frames the newest."""
    if leaf.dtype != np.uint8 or leaf.ndim not in (2, 3) or min(sorted(leaf.shape)[-2:]) < 8:
        return None
    if leaf.ndim == 2:
        return np.repeat(leaf[..., None], 3, -1)
    image = leaf if leaf.shape[-1] <= leaf.shape[0] else np.moveaxis(leaf, 0, -1)
    return image[..., -3:] if image.shape[-1] % 3 == 0 else np.repeat(image[..., -1:], 3, -1)


def numbers(obs: Any) -> list[list[Any]]:
    """The first numbers of what each agent sees at each step, images aside: [N, A, …] to [N][A][n]."""
    parts = [x.reshape(*x.shape[:2], -1) for _, x in leaves(obs) if not (x.dtype == np.uint8 and x.ndim > 3)]
    return rounded(np.concatenate(parts, -1)[..., :NUMBERS]) if parts else []


def rounded(x: np.ndarray) -> Any:
    """Five digits, as lists: a page shows no more."""
    if x.dtype.kind in "biu":
        return x.tolist()
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        size = 10.0 ** (4 - np.floor(np.log10(np.abs(wide))))
        short = np.round(wide * size) / size
    return np.where(np.isfinite(short), short, wide).tolist()


def encoded(picture: np.ndarray, lossless: bool = False) -> bytes:
    from PIL import Image

    image, file = Image.fromarray(np.ascontiguousarray(picture, np.uint8)), io.BytesIO()
    if lossless or max(image.size) <= SMALL:
        image.save(file, "PNG", compress_level=1)
    else:
        image.thumbnail((LARGEST, LARGEST))
        image.convert("RGB").save(file, "JPEG", quality=85)
    return file.getvalue()


def teller(stream: BinaryIO) -> Tell:
    def tell(kind: str, payload: bytes = b"", **head: Any) -> None:
        message = {"kind": kind, **head, "bytes": len(payload)}
        try:
            text = json.dumps(message, allow_nan=False).encode()
        except (ValueError, TypeError):  # no numbers, or arrays, somewhere in it: rare, and slow to look for
            text = dumps(message).encode()
        stream.write(len(text).to_bytes(4, "big") + text + payload)
        stream.flush()

    return tell


class Wishes:
    """What is asked for, read by a thread, so that work on an old wish can end when a new one comes."""

    def __init__(self) -> None:
        self._lines: deque[dict[str, Any] | None] = deque()
        self._come = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._put(json.loads(line))
        self._put(None)

    def _put(self, wish: dict[str, Any] | None) -> None:
        with self._come:
            self._lines.append(wish)
            self._come.notify()

    def next(self) -> dict[str, Any] | None:
        """None: nobody is there any more."""
        with self._come:
            self._come.wait_for(lambda: self._lines)
            return self._lines.popleft()

    def waiting(self) -> bool:
        with self._come:
            return bool(self._lines)

    def elsewhere(self, at: int) -> bool:
        """Whether the newest wish is none that the work from here on leads to."""
        with self._come:
            if not self._lines:
                return False
            newest = self._lines[-1]
            return newest is None or not at <= newest.get("show", [-1])[0] <= at + NEAR

    def left(self, step: int) -> bool:
        """Whether the newest wish is about other steps than one that work is on its way to."""
        with self._come:
            if not self._lines:
                return False
            newest = self._lines[-1]
            return newest is None or not step <= newest.get("imagine", newest.get("show", [-1])[0]) <= step + NEAR
