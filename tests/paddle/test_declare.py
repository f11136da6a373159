"""How a declared function binds its arguments, for declarations made here and for every one of the registry."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from oarlock.paddle import declare
from oarlock.paddle.declare import REGISTRY, api

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declare, "REGISTRY", dict(REGISTRY))


def test_an_optional_parameter_keeps_its_default_under_every_spelling() -> None:
    @api(at="paddle.test", keepdim="keepdims")
    def norm(x: Tensor, axis: int = 1, keepdim: bool = True) -> Any:
        return axis, keepdim

    assert norm(X) == norm(input=X) == (1, True)
    assert norm(X, dim=0, keepdims=False) == norm(X, 0, False) == (0, False)


def test_a_missing_argument_names_its_spellings() -> None:
    @api(at="paddle.test")
    def join(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    with pytest.raises(TypeError, match=r"paddle.test.join\(\) lacks the argument 'y' \(or 'other'\)"):
        join(X)
    with pytest.raises(TypeError, match="both 'y' and 'other'"):
        join(X, Y, other=Y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        join(X, Y, z=1)
    with pytest.raises(TypeError, match="one argument too many, 3"):
        join(X, Y, 3)


def test_sizes_may_be_several_integers_of_any_kind() -> None:
    @api(at="paddle.test", variadic="shape")
    def sized(x: Tensor, shape: Any, dtype: Any = None) -> Any:
        return shape, dtype

    assert sized(X, 2, 3) == sized(X, [2, 3]) == sized(X, size=[2, 3]) == ([2, 3], None)
    assert sized(X, 2, torch.tensor(3), "int8") == ([2, 3], "int8")
    assert sized(X, 4) == ([4], None)


def test_star_arguments_and_keyword_arguments_pass_through() -> None:
    @api(at="paddle.test", out=False)
    def grid(*args: Any, indexing: str = "ij", **options: Any) -> Any:
        return args, indexing, options

    assert grid(1, 2, indexing="xy", name="n", more=3) == ((1, 2), "xy", {"more": 3})


def test_out_of_several_tensors() -> None:
    @api(at="paddle.test")
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x + 1

    out = (torch.empty(0), torch.empty(0))
    assert both(X, out=out)[1] is out[1]
    assert torch.equal(out[1], X + 1)
    with pytest.raises(ValueError, match="out= has 1 tensors"):
        both(X, out=(torch.empty(0),))


def test_functions_trace_into_one_graph() -> None:
    import oarlock.paddle as paddle

    def program(x: Tensor) -> Tensor:
        return paddle.sum(paddle.add(input=x, other=x), dim=0) + paddle.reshape(x, -1)[0]

    compiled = torch.compile(program, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), program(X))


def test_every_declaration_describes_itself() -> None:
    for name, declaration in REGISTRY.items():
        assert declaration.function.__doc__, f"{name} needs a docstring"
        parameters = inspect.signature(declaration.function).parameters
        assert set(declaration.aliases) <= set(parameters), name
        assert not set(declaration.aliases) & set(inspect.signature(declaration.implementation).parameters), name
