"""Both spellings of an argument, the names on which the conventions conflict, and the methods that come and go."""

import inspect

import pytest
import torch

import oarlock.paddle as paddle

X = torch.arange(6.0).reshape(2, 3)


def test_both_spellings_work_and_together_raise() -> None:
    assert torch.equal(paddle.sum(X, axis=1), paddle.sum(input=X, dim=1))
    with pytest.raises(TypeError, match="'axis' and 'dim'"):
        paddle.sum(X, axis=1, dim=1)


def test_name_is_ignored_by_keyword_and_position() -> None:
    assert torch.equal(paddle.cos(X, name="a"), paddle.cos(X, None))


def test_out_takes_the_result_and_its_gradient() -> None:
    x, out = X.clone().requires_grad_(), torch.empty(0)
    assert paddle.sin(x, out=out) is out
    out.sum().backward()
    assert torch.equal(x.grad, torch.cos(X))


@pytest.mark.parametrize("name", ["max", "min", "sort", "split"])
def test_torchs_spelling_of_a_conflicting_name_names_compat(name: str) -> None:
    with pytest.raises(TypeError, match=rf"Did you mean to use paddle.compat.{name}\(\) instead"):
        getattr(paddle, name)(X, dim=1)
    with pytest.raises(TypeError, match=rf"Did you mean to use paddle.{name}\(\) instead"):
        getattr(paddle.compat, name)(X, axis=1)


def test_all_wrong_spellings_are_named_together() -> None:
    with pytest.raises(TypeError, match=r"paddle.max\(\) received unexpected keyword arguments 'dim', 'input'"):
        paddle.max(input=X, dim=1)
    with pytest.raises(TypeError, match=r"'axis'. \nDid you mean to use paddle.nn.functional.softmax\(\) instead"):
        paddle.softmax(X, axis=1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Linear", {"weight_attr": None}),
        ("AvgPool2D", {"exclusive": True}),
        ("Softmax", {"axis": 1}),
        ("Unfold", {"kernel_sizes": 2}),
        ("MultiheadAttention", {"need_weights": True}),
    ],
)
def test_torchs_modules_refuse_paddles_arguments(name: str, wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=rf"Did you mean to use paddle.nn.{name}\(\) instead"):
        getattr(paddle.compat.nn, name)(**wrong)
    assert isinstance(paddle.compat.nn.Linear(2, 3), torch.nn.Linear)


def test_compat_is_torch() -> None:
    assert torch.equal(paddle.compat.max(X, dim=1).indices, torch.tensor([2, 2]))
    assert [part.shape[0] for part in paddle.compat.split(torch.arange(5), 2)] == [2, 2, 1]
    assert torch.equal(paddle.compat.softmax(X), torch.softmax(X, 1))


def test_signature_shows_the_aliases() -> None:
    names = list(inspect.signature(paddle.add).parameters)
    assert names == ["x", "y", "name", "alpha", "out", "input", "other"]


def test_methods_come_and_go() -> None:
    names = paddle.patch_tensor()
    try:
        assert X.astype("float16").dtype == torch.float16
        assert X.stop_gradient
    finally:
        paddle.unpatch_tensor()
    assert not any(hasattr(torch.Tensor, name) for name in names)
