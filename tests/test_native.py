"""The loader of the C++ core and the checks in front of it."""

import sys

import pytest
import torch

from oarlock import _native


def test_the_core_loads_and_knows_its_version():
    assert _native.library() is _native.library()
    assert _native.version()


def test_counts_of_a_small_mask_by_hand():
    # Three keys, four rows, causal bottom-right (offset -1): key j is seen from row j + 1 on, until its bound.
    bounds = torch.tensor([[[4], [2], [4]]], dtype=torch.int32)
    rows = _native.mask_visible_per_row(bounds, causal=True, seqlen_q=4)
    tiles = _native.mask_visible_per_tile(bounds, causal=True, seqlen_q=4, block_q=3, block_k=2)
    assert rows.tolist() == [[0, 1, 1, 2]]
    assert tiles.tolist() == [[[2, 0], [1, 1]]]


@pytest.mark.parametrize("shape", [(0, 5, 1), (2, 0, 1), (2, 5, 1)])
@pytest.mark.parametrize("seqlen_q", [0, 3])
def test_empty_sizes(shape, seqlen_q):
    bounds = torch.full(shape, seqlen_q, dtype=torch.int32)
    assert _native.mask_visible_per_row(bounds, causal=True, seqlen_q=seqlen_q).shape == (shape[0], seqlen_q)
    tiles = _native.mask_visible_per_tile(bounds, causal=True, seqlen_q=seqlen_q, block_q=2, block_k=2)
    assert tiles.shape == (shape[0], (seqlen_q + 1) // 2, (shape[1] + 1) // 2)


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        ([[[1]]], TypeError, "torch.Tensor"),
        (torch.zeros(1, 4, 1), TypeError, "int32"),
        (torch.zeros(1, 4, 1, dtype=torch.int32, device="meta"), TypeError, "CPU"),
        (torch.zeros(4, 1, dtype=torch.int32), ValueError, r"\[any, any, any\]"),
        (torch.zeros(1, 8, 1, dtype=torch.int32)[:, ::2], ValueError, "contiguous"),
        (torch.zeros(1, 4, 4, dtype=torch.int32), ValueError, "1 or 2 columns"),
    ],
)
def test_arguments_that_the_core_cannot_take_are_refused(bounds, error, message):
    with pytest.raises(error, match=message):
        _native.mask_visible_per_row(bounds, causal=True, seqlen_q=4)


def test_a_wrong_library_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("OARLOCK_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(ImportError, match=r"absent\.so"):
        _native.library_path()
    monkeypatch.delenv("OARLOCK_LIBRARY")
    monkeypatch.setattr(sys.modules["oarlock"], "__path__", [str(tmp_path)])
    with pytest.raises(ImportError, match="pip install -e"):
        _native.library_path()


def test_a_file_that_is_no_library_and_another_abi(tmp_path, monkeypatch):
    _native.library.cache_clear()
    fake = tmp_path / "liboarlock.so"
    fake.write_bytes(b"not a library")
    monkeypatch.setenv("OARLOCK_LIBRARY", str(fake))
    with pytest.raises(ImportError, match="cannot load"):
        _native.library()
    monkeypatch.delenv("OARLOCK_LIBRARY")
    monkeypatch.setattr(_native.loader, "ABI", -1)
    with pytest.raises(ImportError, match="ABI"):
        _native.library()
    _native.library.cache_clear()
