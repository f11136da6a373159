"""Files that are not what Paddle writes: refused by name, in bounded memory, and nothing of them runs."""

import collections
import pickle
import pickletools
import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from oarlock.checkpoint import CheckpointError, open_tensors
from oarlock.checkpoint.paddle.records import Malformed
from oarlock.checkpoint.paddle.state_file import leaves
from oarlock.checkpoint.paddle.unpickling import Unpickler

RECORDED = Path(__file__).parent / "recorded"
START = b"\x80\x04"


def value_of(program: bytes, max_bytes: int = 1 << 26) -> object:
    return Unpickler(memoryview(program), max_bytes).load()


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.made_by = function, arguments

    def __reduce__(self) -> tuple:
        return self.made_by


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Call(print, "code of a stranger runs"), "builtins.print"),
        (Call(eval, "print('code of a stranger runs')"), "calls eval with 1 arguments"),
        (Call(eval, "print('code of a stranger runs')", {}), "calls eval"),
        (Call(eval, "data", {"data": 1}), "calls eval"),
        (Call(getattr, 1, "real"), "builtins.getattr"),
        (Call(tuple, "abc"), "a call of tuple in a form"),
        (Call(bytes, 1 << 40), "calls bytes with 1 arguments"),
        (Call(collections.OrderedDict, [("a", 1)]), "calls collections.OrderedDict with 1 arguments"),
        (pickle.PickleBuffer(b"x" * 100), "protocol 5"),
        (collections.Counter("aab"), "collections.Counter"),
        (Path("x"), "pathlib.PosixPath"),
        (torch.nn.Linear(1, 1), r"torch.nn.modules.linear.Linear"),
        (torch.zeros(2), "torch._utils._rebuild_tensor_v2"),
        (np.zeros(2).view(Subclass), "test_hostile.Subclass"),
        (np.array([object()], dtype=object), "an array of dtype 'O8'"),
        (np.zeros(2, dtype="f4,i4"), "an array of dtype 'V8'"),
        (np.zeros(2, dtype=">f4"), "big-endian f4"),
        (np.array(["a"]), "an array of dtype 'U1'"),
        (np.array(["2026-01-01"], dtype="M8[D]"), "an array of dtype 'M8'"),
        (range(3), "range"),
        ({(1, 2): 3}, "a dict with a tuple as key"),
        ({None: 3}, "a dict with a NoneType as key"),
        ({1, 2}, "opcode 0x8f"),
        (bytearray(b"x"), "builtins.bytearray"),
        (1 << 80, "an integer of 11 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_paddle_does_not_write_is_named_and_does_not_run(
    value: object, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pdparams"
    path.write_bytes(pickle.dumps({"a": value}, protocol=5 if isinstance(value, pickle.PickleBuffer) else 4))
    with pytest.raises(CheckpointError, match=rf"x.pdparams: .*{named}"):
        open_tensors(path)
    assert "stranger" not in capsys.readouterr().out


def in_batches(item: bytes, count: int) -> bytes:
    """A list of so many items, as pickle writes them."""
    return b"]" + (b"(" + item * 1000 + b"e") * (count // 1000)


BOMBS = {
    "lists": in_batches(b"]", 100_000),
    "dicts": in_batches(b"}", 100_000),
    "empty tuples": in_batches(b")", 300_000),
    "nothing": in_batches(b"N", 300_000),
    "numbers": in_batches(b"G" + b"@" * 8, 100_000),
    "tuples": in_batches(b"K\1\x85", 100_000),
    "texts": in_batches("X\4\0\0\0😀".encode(), 50_000),
    "mixed texts": in_batches(b"\x8c\xff" + "😀".encode() + b"a" * 251, 6_000),
    "places of bytes": in_batches(b"C\x20" + b"a" * 32, 30_000),
    "remembered": b"N" + b"\x94" * 400_000,
    "keys": b"}" + b"".join(b"(J" + struct.pack("<i", n) + b"Nu" for n in range(60_000)),
    "tuples in tuples": b")" + b"\x85" * 100_000,
    "arrays": in_batches(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nNNtR", 20_000),
    "records": in_batches(b"cpaddle.distributed.flex_checkpoint.dcp.metadata\nMetadata\n)\x81", 10_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_bounded_memory(name: str) -> None:
    room = 1 << 20
    program = START + BOMBS[name] + b"."
    assert len(program) > room // 30
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match=r"bomb or damaged|more than 65536 values"):
            value_of(program, room)
        assert tracemalloc.get_traced_memory()[1] < 2 * room
    finally:
        tracemalloc.stop()


def test_numbers_of_what_is_remembered_and_announced_are_not_believed() -> None:
    for program, problem in {
        b"Nr\xff\xff\xff\x7f.": "remembered as 2147483647",
        b"Nj\xff\xff\xff\x7f.": "value 2147483647 of 0",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.": "9223372036854775807 bytes are announced",
        b"X\xff\xff\xff\xff.": "4294967295 bytes are announced",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff.": "several values",
        b"(" * 1000: "nested deeper than 64",
        b"N" * 100_000 + b".": "more than 65536 values at once",
        b"a.": "takes values that are not there",
        b"](a.": "takes values that are not there",
        b"Nb.": "takes values that are not there",
        b"NNb.": "a state for a NoneType",
        b"N": "the file ends early",
        b"NN.": "several values",
        b"N.N": "1 bytes after the end",
        b"cos\nsystem\n.": "names os.system",
        b"\x8c\x02os\x8c\x06system\x93.": "names os.system",
        b"X\1\0\0\0\xff.": "text that is not utf-8",
        b"cnumpy\nndarray\n)R.": "calls a numpy.ndarray",
        b"cnumpy\ndtype\n)\x81.": "makes a numpy.dtype",
        b"cnumpy\ndtype\nX\2\0\0\0f4\x85RNb.": "a dtype with fields",
    }.items():
        with pytest.raises(Malformed, match=problem):
            value_of(START + program)


def test_a_value_in_many_places_does_not_multiply() -> None:
    nested: list = []
    for _ in range(28):
        nested = [nested, nested]
    with pytest.raises(Malformed, match="more values than any checkpoint"):
        list(leaves(value_of(pickle.dumps(nested, protocol=4))))
    for _ in range(10):
        nested = [nested]
    with pytest.raises(Malformed, match="nested deeper than 32"):
        list(leaves(value_of(pickle.dumps(nested, protocol=4))))
    endless: dict = {}
    endless["x" * 50_000] = {"again": endless, "and": endless}
    with pytest.raises(Malformed, match=r"nested deeper than 32|more values than"):
        list(leaves(value_of(pickle.dumps(endless, protocol=4))))
    long = "x" * 60_000
    with pytest.raises(Malformed, match="more values than any checkpoint"):
        list(leaves(value_of(pickle.dumps([long] * 50_000, protocol=4))))


def test_arrays_with_the_same_bytes(tmp_path: Path) -> None:
    data = np.arange(100.0)
    made = data.__reduce__()
    state = made[2]

    class Array:
        def __reduce__(self) -> tuple:
            return (*made[:2], state)  # the same bytes object every time

    (tmp_path / "x").write_bytes(pickle.dumps([Array(), Array()], protocol=4))
    with pytest.raises(CheckpointError, match="two arrays with the same bytes"):
        open_tensors(tmp_path / "x")


def test_arrays_with_other_sizes(tmp_path: Path) -> None:
    for shape in ((3,), (1 << 62, 1 << 62), (-1,), (5, 0)):
        state = (1, shape, np.dtype("f4"), False, b"x" * 20)

        class Array:
            def __reduce__(self, state: tuple = state) -> tuple:
                return (*np.zeros(1).__reduce__()[:2], state)

        (tmp_path / "x").write_bytes(pickle.dumps({"a": Array()}, protocol=4))
        with pytest.raises(CheckpointError, match=r"an array of shape"):
            open_tensors(tmp_path / "x")


def test_names_that_collide(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps({"a": {"b": np.zeros(1)}, "a.b": np.ones(1)}, protocol=4))
    with pytest.raises(CheckpointError, match=r"two values have the name 'a\.b'"):
        open_tensors(tmp_path / "x")


@pytest.mark.parametrize("name", ["model2.pdparams", "model4.pdparams", "everything4.pdparams", "ranks"])
def test_random_damage_gives_our_error_or_other_values(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    if (RECORDED / name).is_dir():
        shutil.copytree(RECORDED / name, target)
    else:
        shutil.copy(RECORDED / name, target)
    damaged = target / "0.metadata" if target.is_dir() else target
    good = damaged.read_bytes()
    numbers = random.Random(0)
    refused = 0
    for _ in range(200):
        data = bytearray(good)
        for _ in range(numbers.randint(1, 3)):
            data[numbers.randrange(len(data))] = numbers.randrange(256)
        damaged.write_bytes(data[: numbers.randrange(len(data))] if numbers.random() < 0.2 else data)
        try:
            open_tensors(target).read()
        except CheckpointError:
            refused += 1
    assert refused > 50


def test_opcodes_that_we_know_are_those_that_pickle_writes() -> None:
    """Every opcode of the recorded files is known; the list says which others are too."""
    used = set()
    for path in RECORDED.rglob("*"):
        if path.suffix in (".pdparams", ".pdopt", ".pdtensor", ".distcp", ".metadata"):
            used |= {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "BINUNICODE", "SHORT_BINBYTES"} <= used
    assert not used & {"POP", "DUP", "INST", "OBJ", "PERSID", "BINPERSID", "EXT1", "NEXT_BUFFER"}
