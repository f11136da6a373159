"""Transcripts of each level; the region, its backward, and nothing else."""

import logging
import re

import pytest
import torch
from torch import Tensor, nn

from oarlock import debug


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(Twice.apply(self.a(x).relu()))


TRANSCRIPTS = {
    1: """\
[rank 0] linear in a
[rank 0] relu in the program
[rank 0]   mul in the program
[rank 0] Twice in the program
[rank 0] linear in b
[rank 0] backward of linear in b (AddmmBackward0)
[rank 0] backward of Twice in the program (TwiceBackward)
[rank 0] backward of relu in the program (ReluBackward0)
[rank 0] backward of linear in a (AddmmBackward0)""",
    2: """\
[rank 0] linear in a: float32 4x3, float32 2x3, float32 2 -> float32 4x2
[rank 0] relu in the program: float32 4x2 -> float32 4x2
[rank 0]   mul in the program: float32 4x2 -> float32 4x2
[rank 0] Twice in the program: float32 4x2 -> float32 4x2
[rank 0] linear in b: float32 4x2, float32 1x2, float32 1 -> float32 4x1
[rank 0] backward of linear in b (AddmmBackward0): float32 4x1 -> float32 1, float32 4x2, float32 2x1
[rank 0] backward of Twice in the program (TwiceBackward): float32 4x2 -> float32 4x2
[rank 0] backward of relu in the program (ReluBackward0): float32 4x2 -> float32 4x2
[rank 0] backward of linear in a (AddmmBackward0): float32 4x2 -> float32 2, float32 3x2""",
    3: """\
[rank 0] linear in a: float32 4x3, float32 2x3, float32 2 -> float32 4x2 | a/linear1 at FILE
[rank 0] relu in the program: float32 4x2 -> float32 4x2 | relu1 at FILE
[rank 0]   mul in the program: float32 4x2 -> float32 4x2 | mul1 at FILE
[rank 0] Twice in the program: float32 4x2 -> float32 4x2 | Twice1 at FILE
[rank 0] linear in b: float32 4x2, float32 1x2, float32 1 -> float32 4x1 | b/linear2 at FILE
[rank 0] backward of linear in b (AddmmBackward0): float32 4x1 -> float32 1, float32 4x2, float32 2x1 | \
b/linear2Backward at FILE
[rank 0] backward of Twice in the program (TwiceBackward): float32 4x2 -> float32 4x2 | Twice1Backward at FILE
[rank 0] backward of relu in the program (ReluBackward0): float32 4x2 -> float32 4x2 | relu1Backward at FILE
[rank 0] backward of linear in a (AddmmBackward0): float32 4x2 -> float32 2, float32 3x2 | a/linear1Backward at FILE""",
}


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="oarlock.debug")
    return caplog


def lines(heard: pytest.LogCaptureFixture) -> str:
    text = "\n".join(record.getMessage() for record in heard.records)
    return re.sub(r"/\S*test_loglevel.py:\d+", "FILE", re.sub(r", memory [-+,\d]+ B", "", text))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_transcript_of_each_level(level: int, heard: pytest.LogCaptureFixture) -> None:
    model, x = Net(), torch.randn(4, 3)
    with debug.loglevel(level, backward=True, model=model):
        y = model(x)
    y.backward(torch.ones_like(y))  # outside: only nodes that were made in the region
    model(x)
    assert lines(heard) == TRANSCRIPTS[level]


def test_chosen_modules_only(heard: pytest.LogCaptureFixture) -> None:
    model = Net()
    with debug.loglevel(1, modules=["b"], model=model, backward=True):
        model(torch.randn(4, 3)).sum().backward()
    assert lines(heard) == "[rank 0] linear in b\n[rank 0] backward of linear in b (AddmmBackward0)"


def test_without_backward_only_calls(heard: pytest.LogCaptureFixture) -> None:
    with debug.loglevel(1):
        torch.ones(2, requires_grad=True).exp().sum().backward()
    assert lines(heard).splitlines() == [f"[rank 0] {api} in the program" for api in ("ones", "exp", "sum")]


def test_promotion_autocast_and_backends_are_told(heard: pytest.LogCaptureFixture) -> None:
    a = torch.ones(2, 2)
    with debug.loglevel(2):
        a + a.double()
        with torch.autocast("cpu", torch.bfloat16):
            a @ a
        torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 4)] * 3)
    text = lines(heard)
    assert "add in the program: float32 2x2, float64 2x2 -> float64 2x2 [promoted to float64]" in text
    assert "matmul in the program: float32 2x2, float32 2x2 -> bfloat16 2x2 [autocast bfloat16]" in text
    assert "[backends flash/math/memory-efficient]" in text


def test_a_level_for_all_until_it_is_taken_back(heard: pytest.LogCaptureFixture) -> None:
    debug.set_level(1)
    try:
        torch.ones(2)
        debug.set_level(2)
        torch.ones(2)
    finally:
        debug.set_level(0)
    torch.ones(2)
    assert lines(heard) == "[rank 0] ones in the program\n[rank 0] ones in the program: nothing -> float32 2"
    with pytest.raises(ValueError, match="log level 4"):
        debug.set_level(4)


def test_level_two_names_the_backend_that_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    from oarlock.attention import flashmask_attention

    q = torch.randn(1, 16, 2, 8, requires_grad=True)
    with caplog.at_level(logging.INFO, "oarlock.debug"), debug.loglevel(2):
        flashmask_attention(q, q, q, causal=True, backend="reference")
        for _ in range(2):  # also where the choice is known from before
            flashmask_attention(q, q, q, causal=True, backend="fused")
    chosen = [re.search(r"\[flashmask_attention by (\w+)\]", line) for line in caplog.messages]
    assert [found[1] for found in chosen if found] == ["reference", "fused", "fused"]


def test_the_innermost_block_for_a_module_decides(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    x = torch.ones(1, 2)
    with caplog.at_level(logging.INFO, "oarlock.debug"), debug.loglevel(1, backward=True, model=model):
        with debug.loglevel(0):
            model(x)
        assert caplog.messages == []
        with debug.loglevel(0, modules=["0"], model=model):
            y = model(x)
        assert caplog.messages == ["[rank 0] linear in 1"]
        y.sum().backward()
        assert not [line for line in caplog.messages if "in 0" in line]
        assert "[rank 0] backward of linear in 1 (AddmmBackward0)" in caplog.messages
        caplog.clear()
        with debug.loglevel(2, model=model):
            x + 1
        assert caplog.messages == ["[rank 0] add in the program: float32 1x2 -> float32 1x2"]
        caplog.clear()
        x + 1
        assert caplog.messages == ["[rank 0] add in the program"]
