"""Attention of packed documents needs memory in proportion to the sequence, not to its square."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from oarlock.attention import ColumnMask, flashmask_attention

def run(seqlen, backend):
    q, k, v = (torch.randn(1, seqlen, 1, 8, requires_grad=True) for _ in range(3))
    mask = ColumnMask.causal_document([64] * (seqlen // 64))
    flashmask_attention(q, k, v, mask, backend=backend).sum().backward()

run(256, sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(65536, sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in KiB, as Linux gives it")
@pytest.mark.parametrize("name", ["fused", "aten"])
def test_a_long_pack_fits_into_little_memory(name):
    """Tensors and gradients are 2 MiB each; all pairs would be 4 GiB of booleans."""
    command = [sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 96 * 1024
