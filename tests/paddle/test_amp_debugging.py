"""`paddle.amp.debugging`: each claim against a planted fault. The numbers are those that Paddle 3.3.1 gives."""

from pathlib import Path

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.amp import debugging

DebugMode = debugging.DebugMode


def test_numbers_of_a_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    broken = torch.tensor([1.0, 0.0, 3.0, float("nan")])
    stats, numbers = debugging.check_numerics(broken, "op", "x", DebugMode.CHECK_NAN_INF)
    assert stats.tolist() == [1, 0, 1]
    assert numbers[:2].tolist() == [3, 0]
    assert numbers[2].isnan()
    line = capsys.readouterr().out
    assert line.startswith("[PRECISION] [ERROR] in [device=cpu, op=op, tensor=x, dtype=fp32], numel=4, num_nan=1")
    whole = torch.tensor([1.0, 0.0, 3.0, -2.0])
    assert debugging.check_numerics(whole, "op", "x")[1].tolist() == [3, -2, 0.5]
    assert capsys.readouterr().out == ""
    debugging.check_numerics(whole, "op", "x", DebugMode.CHECK_ALL)
    assert "max=3.000000e+00, min=-2.000000e+00, mean=5.000000e-01" in capsys.readouterr().out
    debugging.check_numerics(whole * 1e5, "op", "x", DebugMode.CHECK_ALL_FOR_OVERFLOW)
    assert "[PRECISION] in" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="num_nan=1, num_inf=0"):
        debugging.check_numerics(broken, "op", "x")


def test_the_checker_finds_the_operation_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = debugging.TensorCheckerConfig(enable=True)
    debugging.enable_tensor_checker(config)
    try:
        with pytest.raises(RuntimeError, match=r"num_nan=1, num_inf=1\) in \[device=cpu, op=div"):
            paddle.to_tensor([1.0, 0.0]) / paddle.to_tensor([0.0, 0.0])
    finally:
        debugging.disable_tensor_checker()
    assert (torch.ones(1) / 0).isinf()
    quiet = debugging.TensorCheckerConfig(True, DebugMode.CHECK_NAN_INF, str(tmp_path), skipped_op_list=["mul"])
    debugging.enable_tensor_checker(quiet)
    torch.ones(1) / 0 * 2
    debugging.disable_tensor_checker()
    (line,) = (tmp_path / "tensor_checker.txt").read_text().splitlines()
    assert "op=div" in line
    late = debugging.TensorCheckerConfig(True, debug_step=(2, 3))
    debugging.enable_tensor_checker(late)
    torch.ones(1) / 0  # the first step is not checked
    debugging.enable_tensor_checker(late)
    with pytest.raises(RuntimeError):
        torch.ones(1) / 0
    debugging.disable_tensor_checker()


def test_operations_by_precision(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2, 2)
    with debugging.collect_operator_stats():
        x.bfloat16() @ x.bfloat16()
        x @ x
        x @ x
        x.long() + 1
    rows = {line.split("|")[0].strip(): [int(n) for n in line.split("|")[1:]] for line in lines(capsys)}
    assert rows["mm"] == [0, 1, 2, 0]
    assert rows["add"] == [0, 0, 0, 1]
    torch.ones(1)
    assert capsys.readouterr().out == ""


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]


def test_layers_are_checked_by_a_decorator() -> None:
    class Broken(paddle.nn.Layer):
        @debugging.check_layer_numerics
        def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor

    assert Broken()(torch.ones(2), 2.0).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="output 0"):
        Broken()(torch.ones(2), float("nan"))
    with pytest.raises(RuntimeError, match="input"):
        Broken()(torch.full([2], float("inf")), 0.5)
