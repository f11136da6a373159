"""Odd tensors, full disks and foreign files: right or refused, and never half done."""

import contextlib
import gc
import json
import os
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oarlock.checkpoint import (
    CheckpointError,
    Shard,
    capture_rng,
    load_checkpoint,
    open_safetensors,
    restore_rng,
    save_checkpoint,
)
from oarlock.checkpoint.mapped_file import MappedFile


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a small tmpfs here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("hf", [None, {"model": "w -> v"}])
def test_a_full_disk_in_the_background(small_disk: Path, hf: dict[str, str] | None) -> None:
    first = save_checkpoint(small_disk, 1, tensors={"model": {"w": torch.ones(200, 1000)}}, hf=hf)
    before = os.statvfs(small_disk).f_bfree
    halves = Shard.blocks(torch.ones(400, 1000), (400, 1000), 0, [(200, 400), (0, 200)])
    pending = save_checkpoint(
        small_disk, 2, tensors={"model": {"w": halves}}, hf=hf, keep_last=1, max_shard_bytes=900_000, wait=False
    )
    with pytest.raises(CheckpointError, match=r"existing checkpoints are untouched: No space left on device \(model"):
        pending.result()
    assert os.listdir(small_disk) == ["step-00000001"]
    assert os.statvfs(small_disk).f_bfree == before
    load_checkpoint(first)
    last = save_checkpoint(small_disk, 3, tensors={"model": {"w": torch.ones(3)}}, hf=hf, wait=False).result()
    assert torch.equal(load_checkpoint(last).tensors("model")["w"], torch.ones(3))


def test_files_of_an_older_save_in_the_directory(tmp_path: Path) -> None:
    old = save_checkpoint(tmp_path / "old", 1, tensors={"model": {"a": torch.zeros(40), "b": torch.zeros(40)}},
                          max_shard_bytes=160, hf={"model": ""})  # fmt: skip
    new = save_checkpoint(tmp_path / "new", 1, tensors={"model": {"a": torch.ones(40)}}, hf={"model": ""})
    for file in old.iterdir():
        if not (new / file.name).exists():
            (new / file.name).write_bytes(file.read_bytes())
    assert torch.equal(load_checkpoint(new).tensors("model")["a"], torch.ones(40))
    assert torch.equal(open_safetensors(new).read()["a"], torch.ones(40))
    # the manifest of the old save does not fit the files of the new one
    (old / "model.safetensors.index.json").write_bytes((new / "model.safetensors.index.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"model.safetensors.index.json: expected \d+ bytes, found"):
        load_checkpoint(old, verify="read")
    # a directory without a manifest is no checkpoint, but it is not overwritten either
    (tmp_path / "new" / "step-00000002").mkdir()
    with pytest.raises(CheckpointError, match="a checkpoint of step 2 exists"):
        save_checkpoint(tmp_path / "new", 2, tensors={})
    path = save_checkpoint(tmp_path / "new", 2, tensors={"model": {"a": torch.ones(2)}}, overwrite=True)
    assert sorted(os.listdir(path)) == ["model.safetensors", "oarlock.json"]


@pytest.mark.parametrize("hf", [None, {"m": ""}])
def test_one_bit_of_the_manifest_on_partial_reads(tmp_path: Path, hf: dict[str, str] | None) -> None:
    path = save_checkpoint(tmp_path, 1, tensors={"m": {"a": torch.ones(4, 4)}}, hf=hf)
    manifest = path / "oarlock.json"
    raw = manifest.read_bytes()
    for position in range(0, len(raw), 7):
        manifest.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
        with pytest.raises(CheckpointError, match=r"oarlock\.json"):
            load_checkpoint(path, verify="read")


def test_odd_sources(tmp_path: Path) -> None:
    base = torch.arange(60.0).view(6, 10)
    sources = {
        "transposed": base.mT,
        "stepped": base[1::2, 3::4],
        "expanded": torch.arange(3.0)[:, None].expand(3, 5),
        "overlapping": torch.arange(9.0).as_strided((4, 4), (1, 1)),
        "parameter": nn.Parameter(base[2:4]),
        "conjugate": torch.view_as_complex(base.view(6, 5, 2)).conj(),
        "negative": torch.view_as_complex(base.view(6, 5, 2)).conj().imag,
        "scalar": base[3, 3],
        "empty": base[:, :0],
        "one": base[:1, :1].as_strided((1, 1), (1000, 1000)),
    }
    expected = {name: tensor.detach().clone().resolve_conj().resolve_neg() for name, tensor in sources.items()}
    for step, options in enumerate(({}, {"hf": {"m": ""}}, {"wait": False}, {"hf": {"m": ""}, "wait": False})):
        saved = save_checkpoint(tmp_path, step, tensors={"m": sources}, **options)
        path = saved if isinstance(saved, Path) else saved.result()
        found = load_checkpoint(path, verify="read").tensors("m")
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), (name, options)
            assert found[name].is_contiguous()


def made_in_inference_mode(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(*shape)


def test_odd_destinations(tmp_path: Path) -> None:
    whole = {"a": torch.arange(12.0).view(3, 4), "s": torch.tensor(5.0), "none": torch.zeros(3, 0, 2)}
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": whole}), verify="read")

    def load(tensor: torch.Tensor) -> None:
        others = {"s": torch.zeros(()), "none": torch.zeros(3, 0, 2)}
        saved.load("m", {"a": tensor, **others})
        assert torch.equal(tensor.detach(), whole["a"])
        assert others["s"] == 5

    memory = torch.zeros(100)
    load(memory.as_strided((3, 4), (2, 9), 11))
    assert memory.count_nonzero() == 11
    leaf = nn.Parameter(torch.zeros(3, 4))
    load(leaf)
    assert leaf.requires_grad
    assert leaf.grad_fn is None
    load((torch.zeros(3, 4, requires_grad=True) * 2).T.contiguous().T)
    with torch.inference_mode():
        load(torch.zeros(3, 4))
    for wrong, message in (
        (torch.zeros(3, 4, device="meta"), "meta tensor without memory"),
        (torch.zeros(3, 1).expand(3, 4), r"expanded \(strides \[1, 0\]\)"),
        (torch.zeros(4, 3), r"the checkpoint has shape \[3, 4\], the destination \[4, 3\]"),
        (torch.zeros(9).as_strided((3, 4), (2, 1)), r"share memory \(shape \[3, 4\], strides \[2, 1\]\)"),
        (torch.zeros(3, 4).to_sparse(), r"not dense \(torch.sparse_coo"),
        (made_in_inference_mode(3, 4), "made in inference mode"),
    ):
        scalar = torch.zeros(())
        with pytest.raises(CheckpointError, match=message):
            saved.load("m", {"a": wrong, "s": scalar, "none": torch.zeros(3, 0, 2)})
        assert scalar == 0, "nothing was changed"
    saved.load("m", {"none": torch.zeros(1, 0, 1).expand(3, 0, 2)}, strict="destination")
    empty = Shard.box(torch.zeros(0, 4), (3, 4), (3, 0))
    assert saved.load("m", {"a": empty}, strict="destination").bytes_needed == 0


@pytest.mark.parametrize("aoa", [None, "z -> z ; x -> x ; r -> r"])
def test_destinations_whose_memory_holds_other_bits(tmp_path: Path, aoa: str | None) -> None:
    """A conjugate view and its imaginary part are lazy: their memory has the opposite signs."""
    tensors = {"z": torch.randn(3, 2, dtype=torch.complex64), "x": torch.randn(3, 2), "r": torch.ones(1)}
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": tensors}), verify="read")
    memory = torch.zeros(2, 3, 2, dtype=torch.complex64)
    found = {"r": torch.zeros(1), "z": memory[0].conj(), "x": memory[1].conj().imag}
    saved.load("m", found, aoa=aoa)
    assert torch.equal(memory[0].conj(), tensors["z"])
    assert torch.equal(memory[1].imag, -tensors["x"])


@pytest.mark.parametrize("dtype", [torch.uint4, torch.int4, torch.uint1, torch.bits8, torch.bits16])
def test_dtypes_that_torch_can_only_hold(tmp_path: Path, dtype: torch.dtype) -> None:
    data = torch.arange(250 * dtype.itemsize, dtype=torch.uint8).view(dtype).view(5, 50)
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": {"w": data}}), verify="read")
    bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    assert torch.equal(saved.tensors("m")["w"].view(bits), data.view(bits))
    part = torch.zeros(20, 5, dtype=bits).view(dtype)
    saved.load("m", {"part": part}, aoa="w[:, 10:30]^T -> part")
    assert torch.equal(part.view(bits), data.view(bits)[:, 10:30].T)
    whole = torch.zeros(5, 50)
    for aoa in (None, "w -> w"):
        with pytest.raises(ValueError if aoa else CheckpointError, match=rf"torch has .*{dtype}".replace("torch.", "")):
            saved.load("m", {"w": whole}, cast=True, aoa=aoa)
    assert not whole.any()


@pytest.mark.parametrize("options", [{}, {"hf": {"m": "w^T -> v ; s -> s"}}, {"wait": False}, {"copies": True}])
def test_another_default_device(tmp_path: Path, options: dict[str, Any]) -> None:
    """Memory of our own is the host's, whatever torch.set_default_device says."""
    w, s = torch.arange(12.0).view(3, 4), torch.ones(())
    target, tied, part = torch.zeros(4, 5), torch.zeros(2, 2), torch.zeros(12)
    with torch.device("meta"):
        rng_tensors, rng_state = capture_rng()
        saved = save_checkpoint(
            tmp_path,
            1,
            tensors={"m": {"w": w, "s": s}},
            rank_tensors={"rng": rng_tensors},
            rank_state=rng_state,
            **options,
        )
        opened = load_checkpoint(saved if isinstance(saved, Path) else saved.result(), verify="read")
        assert torch.equal(opened.tensors("m")["w"], w)
        text = "w^T -> t, pad=5, axis=1 ; w[:2, :2] -> a ; w[0:2, 0:2] -> b"
        opened.load("m", {"t": target, "a": tied, "b": tied}, aoa=text, strict="destination")
        opened.load("m", {"w": part.view(3, 4), "u": part.view(3, 4).T}, aoa="w -> w ; w^T -> u", strict="destination")
        restore_rng(opened.tensors("rng", rank=0), opened.rank_state(0))
    assert torch.equal(target[:, :3], w.T)
    assert torch.equal(tied, w[:2, :2])
    assert torch.equal(part.view(3, 4), w)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
@pytest.mark.parametrize("aoa", [None, "w -> x"])
def test_a_load_keeps_no_destination(tmp_path: Path, aoa: str | None, shape: tuple[int, int]) -> None:
    """Whether it succeeds or not, the tensor is free without the garbage collector."""
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": {"w": torch.ones(3, 4)}}), verify="read")
    found = torch.zeros(shape)
    alive = weakref.ref(found)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(CheckpointError, ValueError):
            saved.load("m", {"x" if aoa else "w": found}, aoa=aoa)
        del found
        assert alive() is None
    finally:
        gc.enable()


def test_more_than_two_to_the_32_elements(tmp_path: Path) -> None:
    """A sparse file of 5 GB: places do not fit into 32 bits."""
    rows, columns = 50_000, 100_000
    header = json.dumps({"w": {"dtype": "U8", "shape": [rows, columns], "data_offsets": [0, rows * columns]}}).encode()
    path = tmp_path / "big.safetensors"
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + rows * columns)
        for row, column in ((49_999, 99_999), (49_998, 99_997), (25_000, 0)):
            file.seek(8 + len(header) + row * columns + column)
            file.write(bytes([row % 251]))
    corner = Shard.box(torch.zeros(2, 3, dtype=torch.uint8), (rows, columns), (rows - 2, columns - 3))
    open_safetensors(path).load({"w": corner})
    assert corner.tensor.tolist() == [[49_998 % 251, 0, 0], [0, 0, 49_999 % 251]]
    half = torch.zeros(1, dtype=torch.uint8)
    open_safetensors(path).load({"x": half}, aoa="w[25000, 0:1] -> x", strict="none")
    assert half.item() == 25_000 % 251
    blocks = MappedFile(path).blocks_of("w", torch.uint8, (rows, columns), corner.pieces[0].box)
    start = 8 + len(header)
    expected = {0, *((start + row * columns + column) >> 20 for row in (49_998, 49_999) for column in (99_997, 99_999))}
    assert set(blocks.tolist()) == expected
