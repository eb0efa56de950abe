"""Digests of what a run computed, read from its folder: weights, metrics, episodes and random streams.

Only the files are read, and nothing of the package is imported, so that this survives moves of modules.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MARKS = ("$tensor", "$array", "$tuple", "$items")  # of state.json in a checkpoint
WORKFLOW, STREAMS = "workflow", "streams"  # parts of a checkpoint
OUTSIDE = ("time/", "system/", "schedule/")  # columns of metrics.jsonl that differ between repetitions, or are settings
Digests = dict[str, Any]


def digests(folder: Path) -> Digests:
    """Return what a finished run computed.

    weights   every tensor of the algorithm's state in its last checkpoint, whatever it is called
    names     the same with names, and everything in that state that is no tensor
    random    the random streams in that checkpoint
    metrics   rows of metrics.jsonl without times, machine, schedules and digests; `rows` has a short digest of each
    chain     the digests of weights and experience that those rows hold
    episodes  seed, length, actions and return of every training episode
    """
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [{name: row[name] for name in row if not name.startswith((*OUTSIDE, "digest"))} for row in rows]
    chain = [{name: row[name] for name in row if name.startswith("digest/")} for row in rows]
    texts = [json.dumps(row, sort_keys=True) for row in measured]
    tensors, names = _state(folder, WORKFLOW)
    end = json.loads((folder / "status.json").read_text())
    return {
        "env_steps": end["env_steps"],
        "updates": end["updates"],
        "weights": _sha(sorted(tensors)),
        "names": _sha(names),
        "random": _sha(sorted(_state(folder, STREAMS)[0])),
        "metrics": _sha(texts),
        "chain": _sha([json.dumps(row, sort_keys=True) for row in chain]),
        "episodes": _sha(_episodes(folder)),
        "rows": " ".join(f"{row['env_steps']}:{_sha([text])[:4]}" for row, text in zip(rows, texts, strict=True)),
    }


def _state(folder: Path, part: str) -> tuple[list[str], list[str]]:
    """Return a digest of every tensor in a part of the last checkpoint, and `name digest` of every leaf of its tree."""
    from safetensors.torch import load_file

    checkpoint = folder / "checkpoints" / (folder / "checkpoints" / "last").read_text().strip()
    file = checkpoint / f"{part}.safetensors"
    tensors = {name: _tensor(tensor) for name, tensor in load_file(file).items()} if file.exists() else {}
    tree = json.loads((checkpoint / "state.json").read_text())[part]
    return list(tensors.values()), sorted(f"{name} {text}" for name, text in _leaves(tree, tensors, ""))


def _leaves(tree: Any, tensors: Mapping[str, str], name: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict) and len(tree) == 1 and next(iter(tree)) in MARKS[:2]:
        yield name, tensors[next(iter(tree.values()))]
    elif isinstance(tree, dict | list):
        items: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for part, value in items:
            yield from _leaves(value, tensors, name if part in MARKS else f"{name}.{part}")
    else:
        yield name, repr(tree)


def _tensor(tensor: Any) -> str:
    import torch

    content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(content).hexdigest()}"


def _episodes(folder: Path) -> Iterator[str]:
    """Yield every recorded episode as a text; where one file ends and the next begins is of no interest."""
    from safetensors.numpy import load_file

    for path in sorted((folder / "episodes").glob("*.safetensors")):
        arrays = load_file(path)
        ends = np.cumsum(arrays["length"])
        for row, end in enumerate(ends):
            start = end - arrays["length"][row]
            parts = {
                name: array[start:end] if name.startswith("actions.") else array[row] for name, array in arrays.items()
            }
            yield " ".join(
                f"{name} {part.dtype} {part.shape} {part.tobytes().hex()}" for name, part in sorted(parts.items())
            )


def _sha(texts: Iterable[str]) -> str:
    content = hashlib.sha256()
    for text in texts:
        content.update(text.encode() + b"\n")
    return content.hexdigest()[:24]


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name the parts in which two traces differ, with the first row of metrics; empty where they are equal."""
    parts = [name for name in now if name != "rows" and then.get(name) != now[name]]
    if not parts:
        return ""
    rows = zip(f"{then.get('rows', '')} end".split(), f"{now['rows']} end".split(), strict=False)
    row = next((f", first in the row {a} (now {b}; env_steps:digest)" for a, b in rows if a != b), "")
    changed = [name for name in ("env_steps", "updates") if name in parts]
    counts = "".join(f", {name} {then.get(name)} then and {now[name]} now" for name in changed)
    hint = ": the same tensors under other names" if parts == ["names"] else ""
    return f"differs in {', '.join(parts)}{hint}{row if 'metrics' in parts else ''}{counts}"
