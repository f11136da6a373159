"""What a checkpoint directory holds: its names, and the manifest `oarlock.json`, which is written last.

The manifest is JSON. Its last field is a digest64 of the whole file with the digest's own 16 digits read as zeros, so
a damaged manifest is noticed like any other damaged file.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from oarlock.checkpoint.boxes import Box, explain_cover
from oarlock.digest import BLOCK_BYTES, Digest64

FORMAT = "oarlock-checkpoint"
VERSION = 2
MANIFEST_NAME = "oarlock.json"
ADVICE = "restore it from a copy, or move it away and use the checkpoint before it"

_MAX_ELEMENTS = 1 << 60  # beyond any file; keeps all arithmetic on sizes in 64 bits
_STEP_DIRECTORY = re.compile(r"step-([0-9]{8,})(?:\.([1-9][0-9]*))?")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_DIGEST_LINE = re.compile(rb'"digest": "([0-9a-f]{16})"\n}\n\Z')


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message names the file, what was expected, and what to do."""


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes of a file of the checkpoint and its digest64, also that of each of its MiB.

    Digests are 16 hexadecimal digits; a file of at most 1 MiB has no `blocks`.
    """

    bytes: int
    digest: str
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PieceEntry:
    """A box of a tensor and the file that holds it, under the name that piece_name gives."""

    file: str
    box: Box


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor is stored, with torch's name of its dtype; or, for a tied tensor, the name that it shares."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    pieces: tuple[PieceEntry, ...] = ()
    same_as: str = ""


@dataclass(frozen=True)
class ProgramEntry:
    """How the stored tensors of a group are made of its own: a program in the AOA language, and what it starts from
    (entries without pieces)."""

    aoa: str
    tensors: dict[str, TensorEntry]


@dataclass(frozen=True)
class Copies:
    """The files of tensors that a rank wrote, and where it put copies of boxes that others wrote."""

    files: tuple[str, ...]
    groups: dict[str, dict[tuple[str, Box], str]]
    """group -> (tensor name, box) -> file."""


def piece_name(name: str, shape: tuple[int, ...], box: Box) -> str:
    """What a box of a tensor is called in its file: the tensor's own name if it is all of it, else with the offset."""
    return name if box.size == shape else f"{name}@{','.join(map(str, box.offset))}"


TensorTable = dict[str, dict[str, TensorEntry]]  # group -> tensor name -> entry


@dataclass(frozen=True)
class Manifest:
    """The content of `oarlock.json`; see docs/checkpoints.md."""

    step: int
    world_size: int
    state: Any
    files: dict[str, FileEntry]
    tensors: TensorTable
    rank_tensors: tuple[TensorTable, ...]
    programs: dict[str, ProgramEntry]
    copies: tuple[Copies, ...]
    """One per rank, or none."""


def step_directory(step: int, generation: int = 0) -> str:
    """Name of the directory of a step; a generation above 0 only lives while a checkpoint is being replaced."""
    return f"step-{step:08d}" + (f".{generation}" if generation else "")


def parse_step_directory(name: str) -> tuple[int, int] | None:
    """(step, generation) of a checkpoint directory's name, None for any other name, however like it."""
    match = _STEP_DIRECTORY.fullmatch(name)
    key = (int(match[1]), int(match[2] or 0)) if match else None
    return key if key and step_directory(*key) == name else None


def check_plain_name(name: str, what: str) -> str:
    """Return `name` if it can be a file of a checkpoint, else raise ValueError."""
    if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST_NAME:
        raise ValueError(f"{what} {name!r} must be letters, digits, '_', '-' and '.', and not {MANIFEST_NAME!r}")
    return name


def check_json(value: Any, where: str) -> None:
    """Raise TypeError unless JSON returns `value` unchanged (tuples come back as lists, NaN and infinity survive)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; JSON keys are strings, write {str(key)!r}")
            check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_json(item, f"{where}[{index}]")
    elif not (value is None or isinstance(value, (str, int, float))):
        hint = "pass tensors in `tensors` or `rank_tensors`" if isinstance(value, torch.Tensor) else "convert it"
        raise TypeError(f"{where} is a {type(value).__name__}, which JSON cannot hold; {hint}")


def encode_manifest(manifest: Manifest) -> bytes:
    """`oarlock.json` as bytes: one line per file and tensor, the digest last."""
    fields = {
        "format": json.dumps(FORMAT),
        "version": json.dumps(VERSION),
        "step": json.dumps(manifest.step),
        "world_size": json.dumps(manifest.world_size),
        "writer": json.dumps({"oarlock": _own_version(), "torch": torch.__version__}),
        "state": json.dumps(manifest.state),
        "files": _block({name: json.dumps(_encode_file(file)) for name, file in manifest.files.items()}, 1),
        "tensors": _table_block(manifest.tensors, 1),
        "rank_tensors": "[" + ", ".join(_table_block(table, 1) for table in manifest.rank_tensors) + "]",
        "programs": _block({group: _program_block(program) for group, program in manifest.programs.items()}, 1),
        "copies": "[" + ", ".join(json.dumps(_encode_copies(copies)) for copies in manifest.copies) + "]",
        "digest": json.dumps("0" * 16),
    }
    blank = (_block(fields, 0) + "\n").encode()
    end = b'"\n}\n'
    return blank[: -16 - len(end)] + Digest64().update(blank).hexdigest().encode() + end


def read_manifest(directory: Path, *, verify: bool = True) -> Manifest:
    """Read and check `directory/oarlock.json`; with verify=False its digest may be wrong (a file edited by hand).

    Raises:
        CheckpointError: missing, unreadable, of another version, malformed or damaged.
    """
    path = directory / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(_describe_missing(directory)) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}); it is damaged; {ADVICE}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path}: expected the format {FORMAT!r}, found {found!r}; this is no Oarlock checkpoint")
    if content.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: expected format version {VERSION}, found {content.get('version')!r}; "
            f"read it with the version of oarlock that wrote it ({content.get('writer')})"
        )
    if verify:
        match = _DIGEST_LINE.search(raw)
        found = "no digest" if match is None else match[1].decode()
        blank = raw if match is None else raw[: match.start(1)] + b"0" * 16 + raw[match.end(1) :]
        expected = Digest64().update(blank).hexdigest()
        if found != expected:
            raise CheckpointError(
                f"{path}: its content has the digest {expected}, but the file says {found}; it is damaged, or was "
                f"edited (then verify=False reads it as it is); {ADVICE}"
            )
    try:
        return _decode(content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: malformed ({type(error).__name__}: {error}); {ADVICE}") from error


def decode_table(groups: Mapping[str, Any]) -> TensorTable:
    """The manifest's JSON for groups of tensors as entries."""
    return {group: {name: _decode_entry(entry) for name, entry in names.items()} for group, names in groups.items()}


def encode_entry(entry: TensorEntry) -> dict[str, Any]:
    """The manifest's JSON for one tensor."""
    if entry.same_as:
        return {"same_as": entry.same_as}
    content = {"dtype": entry.dtype, "shape": list(entry.shape)}
    if not entry.pieces:
        return content
    if len(entry.pieces) == 1:
        return {"file": entry.pieces[0].file, **content}
    return content | {"pieces": [[piece.file, piece.box.offset, piece.box.size] for piece in entry.pieces]}


def _decode_entry(entry: dict[str, Any]) -> TensorEntry:
    if "same_as" in entry:
        return TensorEntry(same_as=str(entry["same_as"]))
    shape = tuple(map(int, entry["shape"]))
    if min(shape, default=0) < 0 or math.prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"a tensor of shape {list(shape)}")
    if "file" in entry:
        pieces = [PieceEntry(check_plain_name(entry["file"], "file"), Box.whole(shape))]
    elif "pieces" not in entry:
        pieces = []
    else:
        pieces = [
            PieceEntry(check_plain_name(file, "file"), Box(tuple(map(int, offset)), tuple(map(int, size))))
            for file, offset, size in entry["pieces"]
        ]
        if problem := explain_cover(shape, [piece.box for piece in pieces]):
            raise ValueError(f"pieces of a tensor: {problem}")
    return TensorEntry(str(entry["dtype"]), shape, tuple(pieces))


def _encode_file(entry: FileEntry) -> dict[str, Any]:
    content = {"bytes": entry.bytes, "digest": entry.digest}
    return content | {"blocks": "".join(entry.blocks)} if entry.blocks else content


def _decode_file(entry: dict[str, Any]) -> FileEntry:
    size, digest, text = int(entry["bytes"]), str(entry["digest"]), str(entry.get("blocks", ""))
    blocks = tuple(text[i : i + 16] for i in range(0, len(text), 16))
    if len(blocks) != (-(-size // BLOCK_BYTES) if size > BLOCK_BYTES else 0):
        raise ValueError(f"{len(blocks)} block digests for a file of {size} bytes")
    return FileEntry(size, digest, blocks)


def _decode(content: dict[str, Any]) -> Manifest:
    return Manifest(
        step=int(content["step"]),
        world_size=int(content["world_size"]),
        state=content["state"],
        files={check_plain_name(name, "file"): _decode_file(entry) for name, entry in content["files"].items()},
        tensors=decode_table(content["tensors"]),
        rank_tensors=tuple(decode_table(groups) for groups in content["rank_tensors"]),
        programs={group: _decode_program(program) for group, program in content["programs"].items()},
        copies=tuple(decode_copies(copies) for copies in content["copies"]),
    )


def decode_copies(content: Mapping[str, Any]) -> Copies:
    """The manifest's JSON for a rank's copies as an entry."""
    groups = {
        group: {
            (str(name), Box(tuple(map(int, offset)), tuple(map(int, size)))): check_plain_name(file, "file")
            for file, pieces in files.items()
            for name, offset, size in pieces
        }
        for group, files in content["groups"].items()
    }
    return Copies(tuple(check_plain_name(name, "file") for name in content["files"]), groups)


def _encode_copies(copies: Copies) -> dict[str, Any]:
    groups: dict[str, dict[str, list[Any]]] = {}
    for group, places in copies.groups.items():
        files = groups.setdefault(group, {})
        for (name, box), file in places.items():
            files.setdefault(file, []).append([name, box.offset, box.size])
    return {"files": copies.files, "groups": groups}


def _decode_program(program: dict[str, Any]) -> ProgramEntry:
    tensors = {name: _decode_entry(entry) for name, entry in program["tensors"].items()}
    for name, entry in tensors.items():
        if entry.same_as and (entry.same_as not in tensors or tensors[entry.same_as].same_as):
            raise ValueError(f"{name!r} of a program is said to be the same as {entry.same_as!r}, which it is not")
    return ProgramEntry(str(program["aoa"]), tensors)


def _program_block(program: ProgramEntry) -> str:
    tensors = {name: json.dumps(encode_entry(entry)) for name, entry in program.tensors.items()}
    return _block({"aoa": json.dumps(program.aoa), "tensors": _block(tensors, 3)}, 2)


def _table_block(table: TensorTable, depth: int) -> str:
    groups = {
        group: _block({name: json.dumps(encode_entry(entry)) for name, entry in names.items()}, depth + 1)
        for group, names in table.items()
    }
    return _block(groups, depth)


def _block(fields: Mapping[str, str], depth: int) -> str:
    """A JSON object, one field a line; the values are JSON already."""
    if not fields:
        return "{}"
    indent = " " * (depth + 1)
    return "{\n" + ",\n".join(f"{indent}{json.dumps(k)}: {v}" for k, v in fields.items()) + "\n" + " " * depth + "}"


def _own_version() -> str:
    try:
        return version("oarlock")
    except PackageNotFoundError:  # used from a source tree that is not installed
        return "unknown"


def _describe_missing(directory: Path) -> str:
    if not directory.is_dir():
        parent = directory.parent
        names = sorted(p.name for p in parent.iterdir() if parse_step_directory(p.name)) if parent.is_dir() else []
        return f"{directory}: no such directory; {parent} has {', '.join(names) or 'no checkpoint'}"
    steps = sorted(p.name for p in directory.iterdir() if parse_step_directory(p.name))
    if steps:
        return f"{directory} holds several checkpoints; give one of them, such as {directory / steps[-1]}"
    return (
        f"{directory}: {MANIFEST_NAME} is missing, so this is no complete Oarlock checkpoint "
        "(was it copied only in part?); copy the whole directory or use another checkpoint"
    )
