"""The stubs are those of the declarations, and a type checker accepts programs in both spellings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oarlock.paddle.stubs import ROOT, stubs

PROGRAM = """
import numpy as np
import torch
import oarlock.paddle as paddle
import oarlock.paddle.nn.functional as F

x = paddle.to_tensor([[1.0, 2.0]], dtype="float32", stop_gradient=False)
y: torch.Tensor = paddle.add(x, 2) + paddle.add(input=x, other=x, alpha=2)
reveal_type(paddle.sum(x, axis=1, keepdim=True))
paddle.sum(input=x, dim=1, keepdims=True, out=torch.empty(0))
paddle.zeros(2, 3, dtype="int32")
paddle.zeros([2, 3])
paddle.concat([x, torch.ones(1, 2)], axis=0)
F.softmax(x, dim=-1)
paddle.linalg.norm(x, 2, axis=1)
x.astype("int32").gather_nd(paddle.to_tensor([[0]])).stop_gradient
x.transpose([1, 0]).sum(axis=1)
paddle.Tensor.add(torch.ones(2), 1)
paddle.Tensor(2, 3)
paddle.float32, paddle.bool, paddle.pi
with paddle.strict(), paddle.no_grad():
    paddle.reshape(x, 1, 2)
paddle.sum(x, axes=1)  # refused
paddle.no_such_function(x)  # refused
paddle.max(x, dim=1)  # refused
"""


def test_the_stubs_are_up_to_date() -> None:
    for path, text in stubs().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, "run `oarlock paddle stubs`"


def test_a_type_checker_reads_them(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = Path(sys.executable).with_name("pyright")
    if not command.exists():
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [str(command), "--outputjson", str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    refused = {number for number, line in enumerate(PROGRAM.splitlines()) if line.endswith("# refused")}
    assert {d["range"]["start"]["line"] for d in found if d["severity"] == "error"} == refused
    assert any('is "Tensor"' in d["message"] for d in found), "the result of a function is a tensor"
