# ruff: noqa: RUF005 - a shape plus a list is what Paddle's programs write
"""Strict mode: what Paddle 3.3.1 answers, tensors as Paddle has them, and no trace of it afterwards."""

import copy
import json
from typing import Any

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.strict import StrictTensor
from oarlock.paddle.strict_types import Size
from paddle_cases import GOLDEN, evaluate
from paddle_comparison import assert_all_same
from paddle_forms import few_of_each

# Recorded calls reach for edges (empty sums, complex to real) of which torch warns once a process.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
X = torch.arange(6.0).reshape(2, 3)


CONVENTIONS = json.loads((GOLDEN / "strict.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("answers", [CONVENTIONS, few_of_each()], ids=["conventions", "functions"])
def test_every_recorded_call_answers_the_same_in_strict_mode(answers: dict[str, object]) -> None:
    def evaluated(expression: str) -> object:
        torch.default_generator.manual_seed(0)
        return evaluate(expression, paddle)

    with paddle.strict():
        assert_all_same(answers, evaluated)


def test_results_are_strict_inside_and_plain_outside() -> None:
    with paddle.strict():
        made = paddle.ones([2, 3])
        assert type(made) is StrictTensor
        assert type(made + made) is type(made.sum()) is type(paddle.nn.functional.relu(made)) is StrictTensor
        assert type(torch.sum(made)) is StrictTensor, "torch's own functions keep the class"
        assert made.shape + [1] == [2, 3, 1]
        assert type(paddle.Tensor(2, 3)) is StrictTensor
    assert type(paddle.ones([2, 3])) is torch.Tensor
    assert paddle.float32 is torch.float32
    assert paddle.dtype is torch.dtype


def test_it_decorates_and_nests() -> None:
    @paddle.strict()
    def program() -> object:
        with paddle.strict():
            paddle.ones([1])
        return paddle.ones([2]).shape

    assert type(program()) is Size
    assert type(paddle.ones([2]).shape) is torch.Size


def test_a_strict_tensor_lives_on_after_the_block() -> None:
    with paddle.strict():
        x = paddle.ones([2, 3])
    assert x.max(1).shape == [2]
    assert type(paddle.add(x, x)) is StrictTensor


def test_gradients_reach_the_same_leaf() -> None:
    with paddle.strict():
        x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
        seen = []
        x.register_hook(lambda g: seen.append(g.shape + [0]))
        (paddle.square(x) + x * x).backward()
        assert x.grad.tolist() == [4.0, 8.0]
        assert type(x.grad) is StrictTensor
        assert seen == [[2, 0]]


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "less_than", "pow"])
def test_integers_and_fractions_do_not_mix(name: str) -> None:
    with paddle.strict():
        x, y = paddle.to_tensor([1, 2]), paddle.to_tensor([1.5, 2.5])
        with pytest.raises(TypeError, match=f"{name}.*int64 and float32"):
            getattr(paddle, name)(x, y)
        with pytest.raises(TypeError, match="cast one of them"):
            x + y
        assert (x + paddle.to_tensor(1.5)).tolist() == [2.5, 3.5], "a 0-D tensor counts as a number"


def test_an_error_of_torch_is_a_value_error_too() -> None:
    with paddle.strict():
        leaf = paddle.to_tensor([1.0], stop_gradient=False)
        for kind in (ValueError, RuntimeError):
            with pytest.raises(kind, match="leaf Variable"):
                leaf.add_(leaf)
        assert type(leaf) is StrictTensor, "an error leaves the tensor as it was"


def test_out_names_and_copies() -> None:
    with paddle.strict():
        x = paddle.ones([2, 3])
        out = paddle.empty([0])
        assert paddle.sum(x, axis=1, out=out) is out
        assert out.tolist() == [3.0, 3.0]
        assert x.name != out.name
        x.name = "weight"
        assert x.name == "weight"
        assert copy.deepcopy(x).shape == [2, 3]
        assert x.dtype == torch.float32
        assert torch.float32 == x.dtype
        assert {torch.float32: 1}[x.dtype] == 1
        assert str(x) == (
            "Tensor(shape=[2, 3], dtype=float32, place=Place(cpu), stop_gradient=True,\n"
            "       [[1., 1., 1.],\n        [1., 1., 1.]])"
        )


def test_operations_of_the_user_are_strict_in_both_passes() -> None:
    seen = []

    class Square(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.shape + [0])
            ctx.save_for_backward(x, x * x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            x, square = ctx.saved_tensor()
            seen.extend([x.shape + [1], square.shape + [2], gradient.shape + [3]])
            return 2 * x * gradient

    with paddle.strict():
        x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
        made = Square.apply(x)
        assert made.shape == [2]
        made.sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]
    assert seen == [[2, 0], [2, 1], [2, 2], [2, 3]]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_layers_and_their_training(optimizer: type[torch.optim.Optimizer]) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1)
        )
        steps = optimizer(model.parameters(), lr=0.1)
        x, y = paddle.randn([8, 3]), paddle.randn([8, 1])
        found = []
        for _ in range(5):
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            steps.step()
            steps.zero_grad()
            found.append(loss.item())
        return found

    with paddle.strict():
        layer = torch.nn.Linear(3, 2)
        assert layer.weight.shape == [2, 3]
        assert not layer.weight.stop_gradient
        assert isinstance(layer.weight, torch.nn.Parameter)
        assert layer(paddle.ones([4, 3])).shape == [4, 2]
        strict = losses()
    assert torch.nn.Linear(3, 2).weight.shape == (2, 3), "afterwards layers are plain"
    assert strict == pytest.approx(losses())
    assert strict[-1] < strict[0]


def test_layers_of_paddle_have_strict_parameters() -> None:
    with paddle.strict():
        layer = paddle.nn.Linear(3, 2)
        weight = layer.weight
        assert weight.shape + [1] == [3, 2, 1]
        assert weight.trainable
        assert not weight.stop_gradient
        assert weight.name.startswith("linear_")
        assert [p.shape for p in layer.parameters()] == [[3, 2], [2]]
        optimizer = paddle.optimizer.SGD(learning_rate=0.5, parameters=layer.parameters())
        before = weight.numpy().copy()
        layer(paddle.ones([4, 3])).sum().backward()
        assert weight.grad.shape == [3, 2]
        optimizer.step()
        assert weight.numpy() == pytest.approx(before - 0.5 * 4)
        weight.trainable = False
        assert weight.stop_gradient


def test_strict_layers_of_torch_initialise_and_static_functions_run_eagerly() -> None:
    """torch's initialisers name a generator, which Paddle's `uniform_` does not know."""
    with paddle.strict():
        layer = paddle.compat.nn.MultiheadAttention(4, 2, batch_first=True)
        assert layer.in_proj_weight.abs().max().item() > 0
        assert paddle.jit.to_static(lambda x: paddle.mean(x))(paddle.ones([2])).item() == 1
        assert paddle.to_tensor([1 + 2j]).real().item() == 1
