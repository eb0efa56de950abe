"""Conversion of state trees to files and back: arrays to safetensors, the rest to JSON. Reading executes nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as arrays_to_bytes
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from cadenza.base.parsing import json_tree
from cadenza.trees import leaves

# Marks in the JSON for what JSON has no form for. A plain dict never has keys that begin with "$" (see `_encode`).
TENSOR, ARRAY, TUPLE, ITEMS = "$tensor", "$array", "$tuple", "$items"
PLAIN = frozenset({type(None), bool, int, float, str})
NUMBERS = "biufc"  # kinds of NumPy's types that files can hold
Array = torch.Tensor | np.ndarray


def pack(state: dict[str, Any]) -> dict[str, bytes]:
    """Return file name -> content: `state.json`, and `<part>.safetensors` for each part that holds arrays."""
    files = {}
    structure = {}
    for part, tree in state.items():
        arrays: dict[str, Array] = {}
        structure[part] = _encode(tree, arrays)
        if arrays:
            files[f"{part}.safetensors"] = _to_bytes(arrays)
    files["state.json"] = json.dumps(structure).encode()  # indenting would take Python 2 ms
    return files


def unpack(files: dict[str, bytes], only: str | None = None) -> dict[str, Any]:
    """Return the state that `pack` was given, or with `only` a dict of that one of its parts.

    Arrays are NumPy's or torch's, as they were, torch's on the CPU.
    """
    structure = json_tree(files["state.json"])
    state = {}
    for part, tree in structure.items() if only is None else [(only, structure[only])]:
        name = f"{part}.safetensors"
        state[part] = _decode(tree, tensors_from_bytes(files[name]) if name in files else {})
    return state


def _to_bytes(arrays: dict[str, Array]) -> bytes:
    """Return the content of a file with the arrays. The way over NumPy takes half the time of the one over torch."""
    try:
        return arrays_to_bytes({key: np.asarray(array, order="C") for key, array in arrays.items()})
    except TypeError:  # a type that NumPy lacks, such as bfloat16
        return tensors_to_bytes({key: torch.as_tensor(array).clone().contiguous() for key, array in arrays.items()})


def _encode(value: Any, arrays: dict[str, Array]) -> Any:
    if type(value) in PLAIN:  # most of a state, so first
        return value
    if isinstance(value, torch.Tensor | np.ndarray):
        key = str(len(arrays))
        if isinstance(value, torch.Tensor):
            arrays[key] = value.detach().cpu()
            return {TENSOR: key}
        if value.dtype.kind not in NUMBERS:
            raise TypeError(f"state holds an array of {value.dtype}, which files of numbers cannot hold")
        arrays[key] = value
        return {ARRAY: key}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, arrays) for key, item in value.items()}
        return {ITEMS: [[_encode(key, arrays), _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {TUPLE: [_encode(item, arrays) for item in value]}
    if isinstance(value, list):
        return value if set(map(type, value)) <= PLAIN else [_encode(item, arrays) for item in value]
    if isinstance(value, int | float | str):
        return value
    raise TypeError(f"state holds a {type(value).__name__}, which cannot be saved without executing code on loading")


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if ARRAY in value:
        return tensors[value[ARRAY]].numpy()
    if TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[TUPLE])
    if ITEMS in value:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value[ITEMS]}
    return {key: _decode(item, tensors) for key, item in value.items()}


def digest(state: dict[str, Any]) -> str:
    """Return a short hash of all tensors in a state."""
    total = hashlib.sha256()
    for _, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor):
            total.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


def first_not_finite(state: dict[str, Any]) -> str | None:
    """Return the path of the first tensor that holds a NaN or an infinity, or None."""
    for path, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not leaf.isfinite().all():
            return path
    return None
