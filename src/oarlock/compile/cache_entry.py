"""The file of one entry of the cache: `OARLOCKC`, the header's length (8 bytes, little-endian), header (JSON), data."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

from oarlock.compile.cache_key import CacheKey

_MAGIC = b"OARLOCKC"
_MAX_HEADER = 1 << 22


def write_entry(path: Path, key: CacheKey, data: bytes) -> None:
    """Write under a temporary name, then rename: a reader sees a whole entry or none."""
    header = {
        "key": dict(key.parts),
        "details": {name: dict(texts) for name, texts in key.details.items()},
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    text = json.dumps(header).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:  # with the rights of any new file: others may read it where umask says so
            file.write(_MAGIC + struct.pack("<Q", len(text)) + text + data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_key(path: Path) -> CacheKey:
    """What an entry was made with.

    Raises:
        OSError, ValueError: no entry, or a damaged one.
    """
    with open(path, "rb") as file:
        header = _header(file)
    return CacheKey(header["key"], header["details"])


def read_entry(path: Path) -> tuple[str, bytes]:
    """(when it was made, its data), checked against the digest.

    Raises:
        OSError, ValueError: no entry, or a damaged one.
    """
    with open(path, "rb") as file:  # opened once: another process may replace the entry meanwhile
        header = _header(file)
        data = file.read()
    if hashlib.sha256(data).hexdigest() != header["sha256"]:
        raise ValueError("its digest does not match")
    return header["made"], data


def _header(file: BinaryIO) -> dict[str, Any]:
    magic = file.read(16)
    if len(magic) < 16 or magic[:8] != _MAGIC:
        raise ValueError("not a file of this cache")
    (length,) = struct.unpack("<Q", magic[8:])
    if length > _MAX_HEADER:
        raise ValueError("its header is too long")
    header = json.loads(file.read(length))
    match header:
        case {"key": dict(key), "details": dict(details), "made": str(), "sha256": str()} if _are_texts(key):
            if all(isinstance(texts, dict) and _are_texts(texts) for texts in details.values()):
                return header
    raise ValueError("its header is not one of this cache")


def _are_texts(values: dict[Any, Any]) -> bool:
    return all(isinstance(value, str) for value in values.values())
