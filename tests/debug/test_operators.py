"""Custom operators are recorded like built-in ones, and what is wrong with them is said in words."""

import pytest
import torch
from torch import Tensor

from oarlock import debug


@torch.library.custom_op("oarlock_test::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


scaled.register_fake(lambda x, factor: torch.empty_like(x))
scaled.register_autograd(
    lambda ctx, g: (g * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)

LIBRARY = torch.library.Library("oarlock_test2", "DEF")
for name in ("shape", "liar", "plain", "wrong", "aliases"):
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
LIBRARY.impl("shape", lambda x: x[:1].clone(), "CPU")
LIBRARY.impl("shape", torch.empty_like, "Meta")
LIBRARY.impl("liar", lambda x: x.add_(1).clone(), "CPU")
LIBRARY.impl("liar", torch.empty_like, "Meta")
LIBRARY.impl("plain", lambda x: x * 2, "CPU")
LIBRARY.impl("wrong", lambda x: x * 2, "CPU")
LIBRARY.impl("wrong", torch.empty_like, "Meta")
torch.library.register_autograd("oarlock_test2::wrong", lambda ctx, g: g * 3, lib=LIBRARY)


def test_a_correct_operator_has_no_findings() -> None:
    assert debug.check_op(scaled, [(torch.randn(3, 2), 2.0), (torch.randn(1, dtype=torch.float64), -1.0)]) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shape", "fake: output 0 has shape (3, 2) where the operator gives (1, 2)"),
        ("liar", "schema: "),
        ("plain", "fake: there is no implementation"),
        ("plain", "autograd kernel"),
        ("wrong", "gradients: the backward differs from finite differences"),
    ],
)
def test_a_planted_fault_is_said_in_words(name: str, words: str) -> None:
    found = debug.check_op(getattr(torch.ops.oarlock_test2, name).default, [(torch.randn(3, 2),)])
    assert any(words in line for line in found), found


def test_no_samples_and_failing_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one tuple"):
        debug.check_op(scaled, [])
    with pytest.raises(ValueError, match="fails on sample 0"):
        debug.check_op(scaled, [("x", 1.0)])


def test_custom_operators_are_recorded_with_names_stacks_and_digests() -> None:
    x = torch.randn(3, requires_grad=True)
    with debug.trace(stacks=True, digests="sha1") as t:
        scaled(x, 2.0).sum().backward()
    records = {record["name"]: record for record in t.records}
    call = records["oarlock_test.scaled1"]
    assert call["outputs"][0]["name"] == "oarlock_test.scaled1_out_float32_3"
    assert len(call["outputs"][0]["digest"]) == 40
    assert call["stack"] > 0
    node = records["oarlock_test.scaled1Backward"]
    assert node["outputs"][0]["digest"] != node["inputs"][0]["digest"]


def test_an_operator_without_a_backward_is_told_once() -> None:
    @torch.library.custom_op("oarlock_test3::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    assert debug.check_op(doubled, [(torch.ones(2, 3),)]) == [
        "sample 0: autograd: its outputs have no backward although an input needs one; register_autograd gives it"
    ]


def test_a_backward_that_raises_is_told_once() -> None:
    @torch.library.custom_op("oarlock_test3::raising", mutates_args=())
    def raising(x: Tensor) -> Tensor:
        return x * 2

    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise ValueError("not today")

    raising.register_fake(torch.empty_like)
    raising.register_autograd(backward)
    assert debug.check_op(raising, [(torch.ones(2, 3),)]) == ["sample 0: autograd: its backward fails: not today"]
