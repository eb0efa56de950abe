"""A reader of W&B's file of a run: blocks of 32 KiB with records in one or more pieces, each a protobuf."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
PIECE = struct.Struct("<IHB")  # checksum, length, whether it is whole (1), first (2), middle (3) or last (4)


def records(path: Path) -> Iterator[bytes]:
    content, at, record = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while at + PIECE.size <= len(content):
        room = BLOCK - at % BLOCK
        if room < PIECE.size:
            at += room
            continue
        _, length, kind = PIECE.unpack_from(content, at)
        at += PIECE.size
        record += content[at : at + length]
        at += length
        if kind in (1, 4):
            yield record
            record = b""


def history(path: Path) -> list[dict[str, Any]]:
    """Every row that was logged, with W&B's step as `_step`."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for content in records(path):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in items.items()} | {"_step": record.history.step.num})
    return rows
