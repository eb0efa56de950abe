"""Frames of an episode: copies, batches for the policy, and the numbers and pictures that a page shows."""

from __future__ import annotations

import io
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.trees import leaves, map_tree
from cadenza.types import Frame

NUMBERS = 64  # of an observation or action that a page shows, at most
SMALL = 256  # pixels: pictures smaller than this in both directions are sent without the losses of JPEG
LARGEST = 960  # pixels of a picture in either direction
FIELDS = attrgetter(*(field.name for field in fields(Frame)))


def copied(frame: Frame) -> Frame:
    """Copy the arrays of a frame, into which the environment may write later."""
    return Frame(*(map_tree(lambda x: x.copy() if isinstance(x, np.ndarray) else x, part) for part in FIELDS(frame)))


def size(frame: Frame) -> int:
    """Return the bytes of a frame's observations and state."""
    return sum(leaf.nbytes for tree in (frame.obs, frame.state) if tree is not None for _, leaf in leaves(tree))


def stack(*arrays: np.ndarray) -> np.ndarray:
    """Stack leaves of trees along a new first axis."""
    return np.stack(arrays)


def describe_action(space: spaces.Space[Any]) -> dict[str, Any]:
    """Describe an action space for the page."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "several", "counts": space.nvec.ravel().tolist()}
    if isinstance(space, spaces.Box):
        low, high = (np.where(np.isfinite(x), x, 0.0).ravel()[:NUMBERS].tolist() for x in (space.low, space.high))
        return {"kind": "box", "low": low, "high": high}
    return {"kind": "switches", "n": int(np.prod(space.shape or (1,)))}


def number_names(obs: Any) -> list[str]:
    """Return the names of the numbers of `first_numbers`, from observations [A, …]: the keys above them, and places."""
    names = []
    for path, leaf in leaves(obs):
        if not (leaf.dtype == np.uint8 and leaf.ndim > 2):
            shape = leaf.shape[1:]
            places = [",".join(map(str, place)) for place in islice(np.ndindex(*shape), NUMBERS)]
            names += [f"{path}[{place}]" if path and place else path or place or "0" for place in places]
    return names[:NUMBERS]


def first_numbers(obs: Any) -> list[list[Any]]:
    """Return the first numbers of observations [N, A, …], without images, as lists [N][A][n]."""
    parts = [x.reshape(*x.shape[:2], -1) for _, x in leaves(obs) if not (x.dtype == np.uint8 and x.ndim > 3)]
    return rounded(np.concatenate(parts, -1)[..., :NUMBERS]) if parts else []


def rounded(x: np.ndarray) -> Any:
    """Return numbers as lists, rounded to the five digits that a page shows."""
    if x.dtype.kind in "biu":
        return x.tolist()
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = 10.0 ** (4 - np.floor(np.log10(np.abs(wide))))
        short = np.round(wide * scale) / scale
    return np.where(np.isfinite(short), short, wide).tolist()


def image_of(obs: Any) -> np.ndarray | None:
    """Return the first image among the observations [A, …] of the first agent, or None."""
    images = (as_image(leaf[0]) for _, leaf in leaves(obs))
    return next((image for image in images if image is not None), None)


def as_image(leaf: np.ndarray) -> np.ndarray | None:
    """Return an image of bytes ([H, W, C], [C, H, W] or [H, W]) as [H, W, 3], the newest of a stack; else None."""
    if leaf.dtype != np.uint8 or leaf.ndim not in (2, 3) or min(sorted(leaf.shape)[-2:]) < 8:
        return None
    if leaf.ndim == 2:
        return np.repeat(leaf[..., None], 3, -1)
    image = leaf if leaf.shape[-1] <= leaf.shape[0] else np.moveaxis(leaf, 0, -1)
    return image[..., -3:] if image.shape[-1] % 3 == 0 else np.repeat(image[..., -1:], 3, -1)


def encoded(picture: np.ndarray, lossless: bool = False) -> bytes:
    """Encode a picture as PNG if it is small or must be `lossless`, else as JPEG."""
    from PIL import Image

    image, file = Image.fromarray(np.ascontiguousarray(picture, np.uint8)), io.BytesIO()
    if lossless or max(image.size) <= SMALL:
        image.save(file, "PNG", compress_level=1)
    else:
        image.thumbnail((LARGEST, LARGEST))
        image.convert("RGB").save(file, "JPEG", quality=85)
    return file.getvalue()
