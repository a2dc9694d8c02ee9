"""Read what Weights & Biases writes offline: a LevelDB log of protobuf records."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768  # bytes; a record's header never crosses a block's end
_FILE_HEADER = 7  # ":W&B", a magic number and a version
_HEADER = struct.Struct("<IHB")  # checksum, length, type: 1 whole, 2 first, 3 middle, 4 last part
_LAST_PARTS = (1, 4)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return what was logged, one dict per step, run by run of a folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    rows = []
    for raw in (raw for path in runs for raw in _records(path.read_bytes())):
        record = Record()
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows


def _records(data: bytes) -> Iterator[bytes]:
    position, parts = _FILE_HEADER, b""
    while position + _HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        parts += data[position : position + length]
        position += length
        if kind in _LAST_PARTS:
            yield parts
            parts = b""
