"""Where the C++ kernels are used: by the public functions, in each instruction set, and not under torch.compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from oarlock import _native, ops
from oarlock.ops import fused

EPS = 1e-5


def loss_of(reduction: str):
    targets = torch.randint(0, 60, (30,), generator=torch.Generator().manual_seed(5))
    targets[[3, 29]] = -100
    return lambda hidden, weight: ops.linear_cross_entropy(hidden, weight, targets, reduction=reduction, chunk=8)


COS_SIN = ops.rope_tables(torch.arange(5)[None], 8, 10_000.0)
PUBLIC = {
    "rms_norm": (lambda x, w: ops.rms_norm(x, w, EPS), [(3, 5, 8), (8,)]),
    "add_rms_norm": (lambda x, u, w: ops.add_rms_norm(x, u, w, EPS), [(3, 5, 8), (3, 5, 8), (8,)]),
    "swiglu": (ops.swiglu, [(3, 5, 8), (3, 5, 8)]),
    "rope": (lambda x: ops.rope(x, *COS_SIN), [(2, 5, 3, 8)]),
    "rope interleaved": (lambda x: ops.rope(x, *COS_SIN, interleaved=True), [(2, 5, 3, 8)]),
    "norm_rope": (lambda x, w: ops.norm_rope(x, w, EPS, *COS_SIN), [(2, 5, 3, 8), (8,)]),
    "norm_rope interleaved": (
        lambda x, w: ops.norm_rope(x, w, EPS, *COS_SIN, interleaved=True),
        [(2, 5, 3, 8), (8,)],
    ),
    "loss sum": (loss_of("sum"), [(30, 8), (60, 8)]),
    "loss mean": (loss_of("mean"), [(30, 8), (60, 8)]),
    "loss none": (loss_of("none"), [(30, 8), (60, 8)]),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_functions_take_the_kernels_and_agree_with_their_torch_path(name, monkeypatch):
    function, shapes = PUBLIC[name]
    inputs = [torch.randn(shape) for shape in shapes]
    calls = []
    call = _native.call
    monkeypatch.setattr(_native, "call", lambda *arguments: (calls.append(arguments[0]), call(*arguments)))
    ours = outputs_and_gradients(function, inputs)
    assert calls
    monkeypatch.setattr(fused, "applies", lambda *tensors: False)
    calls.clear()
    theirs = outputs_and_gradients(function, inputs)
    assert not calls
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # both have the error of float32 sums


def outputs_and_gradients(function, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(y.shape, generator=generator) for y in outputs]
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, leaves, upstream)]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does it itself
def test_torch_compile_takes_the_torch_path():
    compiled = torch.compile(lambda x, w: ops.swiglu(ops.rms_norm(x, w), x), backend="eager", fullgraph=True)
    x, weight = torch.randn(3, 8), torch.randn(8)
    torch.testing.assert_close(compiled(x, weight), ops.swiglu(ops.rms_norm(x, weight), x))


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_another_instruction_set(isa):
    """The tests of the kernels, for those that this machine would not choose."""
    if isa == _native.isa():
        pytest.skip("test_fused.py runs with it")
    environment = {**os.environ, "OARLOCK_ISA": isa, "OMP_NUM_THREADS": "1"}
    file = Path(__file__).with_name("test_fused.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    folder = Path(__file__).parents[2]
    run = subprocess.run(command, env=environment, timeout=200, cwd=folder, capture_output=True, text=True)
    if "is not an instruction set of this CPU" in run.stdout:
        pytest.skip(f"this CPU has no {isa}")
    assert run.returncode == 0, run.stdout


def test_an_unknown_instruction_set_is_refused():
    environment = {**os.environ, "OARLOCK_ISA": "avx1024"}
    command = [sys.executable, "-c", "from oarlock import _native; _native.isa()"]
    run = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True)
    assert run.returncode == 1
    assert "OARLOCK_ISA='avx1024'" in run.stderr


def test_freed_memory_is_kept():
    """Blocks of 64 MiB come without page faults once the heap has settled (in a process of its own)."""
    script = """
import resource, torch
from oarlock import _native
if not _native.keep_freed_memory(): raise SystemExit
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert faults < 1000, faults  # of 16384 pages of 4 KiB
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)
