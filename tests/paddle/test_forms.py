"""Every recorded call, written in the other forms that its declaration allows, gives the recorded answer."""

import ast
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.conventions import TENSOR_METHODS
from paddle_cases import GOLDEN, environment, evaluate, plain
from paddle_comparison import assert_same
from paddle_forms import FORMS, declared, functions_of, rewritten

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
CALLS_OF_EACH = 12  # of one function: enough for its parameters, few enough for the time of a test


def few_of_each() -> dict[str, Any]:
    """Recorded calls and their answers, not more of one function than `CALLS_OF_EACH`."""
    found: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for path in sorted(GOLDEN.glob("*.json")):
        if path.stem == "strict":
            continue
        for expression, answer in json.loads(path.read_text(encoding="utf-8")).items():
            names = {declaration.names[0] for declaration in functions_of(expression)}
            if names and min(counts[name] for name in names) < CALLS_OF_EACH:
                counts.update(names)
                found[expression] = answer
    return found


ANSWERS = few_of_each()


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


@pytest.mark.parametrize("form", FORMS)
def test_another_form_of_a_recorded_call(form: str) -> None:
    wrong = []
    for expression, answer in ANSWERS.items():
        other = rewritten(expression, form)
        if other is None or (form == "method" and conflicts(other)):
            continue
        torch.manual_seed(0)
        try:
            assert_same(evaluate(other, paddle), answer)
        except Exception as error:
            wrong.append(f"{expression}\n    {other}\n    {type(error).__name__}: {str(error).strip()[:300]}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


def conflicts(expression: str) -> bool:
    """Whether a method is called that means something else on a plain tensor."""
    nodes = ast.walk(ast.parse(expression, mode="eval"))
    return any(isinstance(node, ast.Attribute) and node.attr in TENSOR_METHODS for node in nodes)


def test_out_takes_the_answer() -> None:
    wrong = []
    for expression, answer in ANSWERS.items():
        call = ast.parse(expression, mode="eval").body
        if not isinstance(call, ast.Call) or not (declaration := declared(call)):
            continue
        if "out" not in declaration.signature.parameters or any(k.arg == "out" for k in call.keywords):
            continue
        if not isinstance(answer, dict) or "dtype" not in answer:
            continue
        call.keywords.append(ast.keyword("out", ast.Name("out", ast.Load())))
        other = ast.unparse(ast.fix_missing_locations(call))
        out = torch.empty(0, dtype=getattr(torch, answer["dtype"]))
        torch.manual_seed(0)
        try:
            eval(other, {**environment(paddle), "out": out})
            assert_same(plain(out, paddle.Tensor), answer)
        except Exception as error:
            wrong.append(f"{other}\n    {type(error).__name__}: {str(error).strip()[:300]}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)
