"""Every recorded call, written in the other forms that its declaration allows, gives the recorded answer."""

import ast
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.conventions import TENSOR_METHODS
from paddle_cases import environment, evaluate, plain
from paddle_comparison import assert_all_same
from paddle_forms import FORMS, arguments, declared, few_of_each, rewritten

# Recorded calls reach for edges (empty sums, complex to real) of which torch warns once a process.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
# Methods of plain tensors that are torch's in a corner where Paddle's differ: the sign of NaN, sums of int8, products
# of int32, the gradient of a mean over NaN, the unused triangle of a Cholesky factor, a change in place of integers.
CORNERS = {"sgn", "sign", "sum", "prod", "nanmean", "cholesky_inverse", "logical_not_", "frac_"}
CORNERS |= {"log_", "log10_", "log1p_", "log2_"}
ANSWERS = few_of_each()


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


@pytest.mark.parametrize("form", FORMS)
def test_another_form_of_a_recorded_call(form: str) -> None:
    others = {rewritten(expression, form): answer for expression, answer in ANSWERS.items()}
    chosen = {
        other: answer for other, answer in others.items() if other and not (form == "method" and conflicts(other))
    }
    assert_all_same(chosen, recorded)


def recorded(expression: str) -> Any:
    torch.default_generator.manual_seed(0)
    return evaluate(expression, paddle)


def conflicts(expression: str) -> bool:
    """Whether a method is called that means something else on a plain tensor."""
    nodes = ast.walk(ast.parse(expression, mode="eval"))
    return any(
        isinstance(node, ast.Attribute) and (node.attr in TENSOR_METHODS or node.attr in CORNERS) for node in nodes
    )


def test_out_takes_the_answer() -> None:
    def written(expression: str) -> Any:
        out = torch.empty(0, dtype=getattr(torch, ANSWERS[expression]["dtype"]))
        call = ast.parse(expression, mode="eval").body
        assert isinstance(call, ast.Call)
        call.keywords.append(ast.keyword("out", ast.Name("out", ast.Load())))
        torch.default_generator.manual_seed(0)
        eval(ast.unparse(ast.fix_missing_locations(call)), {**environment(paddle), "out": out})
        return plain(out, paddle.Tensor)

    assert_all_same({e: answer for e, answer in ANSWERS.items() if takes_out(e) and is_tensor(answer)}, written)


def is_tensor(answer: Any) -> bool:
    return isinstance(answer, dict) and "dtype" in answer


def takes_out(expression: str) -> bool:
    call = ast.parse(expression, mode="eval").body
    declaration = declared(call) if isinstance(call, ast.Call) else None
    if declaration is None or "out" not in declaration.signature.parameters:
        return False
    given = arguments(call, declaration)  # type: ignore[arg-type]
    return given is not None and "out" not in given


LAYOUT = ("as_strided", "view", "strides", "offset", "resize_", "set_(", "inplace_version")  # these are about memory


def test_inputs_that_are_not_contiguous() -> None:
    """Every input as each second number of a larger tensor."""

    def strided(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*shape: Any) -> torch.Tensor:
            x = make(*shape)
            wide = torch.full((*x.shape, 2), 1, dtype=x.dtype)
            wide[..., 0] = x
            return wide[..., 0]

        return made

    def evaluated(expression: str) -> Any:
        names = environment(paddle)
        names.update({name: strided(names[name]) for name in "fduibcs"})
        torch.default_generator.manual_seed(0)
        return plain(eval(expression, names), paddle.Tensor)

    chosen = {e: answer for e, answer in ANSWERS.items() if not any(word in e for word in LAYOUT)}
    assert_all_same(chosen, evaluated)
