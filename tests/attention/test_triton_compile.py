"""The Triton kernels compile for a Hopper GPU, on a machine without one, and fit it."""

import os

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels are not compiled", allow_module_level=True)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from oarlock.attention.backends.triton.forward import forward_kernel
from oarlock.attention.backends.triton.key_gradient import dkv_kernel
from oarlock.attention.backends.triton.query_gradient import dq_kernel
from oarlock.attention.backends.triton.tiles import candidates

KERNELS = {"forward": forward_kernel, "dq": dq_kernel, "dkv": dkv_kernel}
HOPPER = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 227 * 1024 - 1024
"""Shared memory of a Hopper program, less what the system keeps."""
TYPES = {
    "int32": {"columns_ptr", "lists_ptr", "counts_ptr", "order_ptr", "state_ptr"},
    "fp32": {"lse_ptr", "delta_ptr"},
}


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel, tiles, dtype, constants):
    """The kernel for contiguous tensors whose strides are multiples of 16."""
    signature, fixed, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants or name.endswith("_stride_d"):
            signature[name], fixed[(place,)] = "constexpr", constants.get(name, 1)
            continue
        if name.endswith("_ptr"):
            signature[name] = "*i32" if name in TYPES["int32"] else "*fp32" if name in TYPES["fp32"] else f"*{dtype}"
        else:
            signature[name] = "fp32" if "scale" in name else "i32"
        if name.endswith("_ptr") or "_stride_" in name:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=fixed, attrs=attributes)
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return triton.compile(source, target=HOPPER, options=options)


def check(name, dim, dtype, **changes):
    torch_dtype, short = {"half": (torch.bfloat16, "bf16"), "full": (torch.float32, "fp32")}[dtype]
    tiles = candidates(name, dim, torch_dtype)[0]
    constants = {
        "CAUSAL": True,
        "NUM_BOUNDS": 1,
        "DROPOUT": False,
        "BLOCK_Q": tiles.rows,
        "BLOCK_K": tiles.keys,
        "DIM": dim,
        "VALUE_DIM": dim,
        "BLOCK_D": dim,
        "BLOCK_DV": dim,
        "PRECISION": "tf32x3",
        "REPAIR": False,
        **changes,
    }
    binary = compiled(KERNELS[name], tiles, short, constants)
    assert binary.metadata.shared <= SHARED_BYTES
    if dtype == "half":
        assert "wgmma" in binary.asm["ptx"]


@pytest.mark.parametrize("name", KERNELS)
def test_the_usual_kernels(name):
    check(name, 64, "half")


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["half", "full"])
@pytest.mark.parametrize("name", KERNELS)
def test_all_head_dims(name, dtype, dim):
    check(name, dim, dtype)
    check(name, dim, dtype, CAUSAL=False, NUM_BOUNDS=4, DROPOUT=True, REPAIR=True)
