"""The functions that change their first argument, `exp_` for `exp`, made from those that do not."""

import inspect
from typing import Any

from torch import Tensor

from oarlock.paddle import tensors as _tensors  # noqa: F401 - the functions are declared there
from oarlock.paddle.declare import REGISTRY, api

NAMES = """
abs acos acosh add addmm asin asinh atan atanh baddbmm bitwise_and bitwise_invert bitwise_left_shift bitwise_not
bitwise_or bitwise_right_shift bitwise_xor ceil clip clamp copysign cos cosh cumprod cumsum digamma div divide
equal erf erfinv exp expm1 floor floor_divide floor_mod frac gammainc gammaincc gammaln gcd greater_equal
greater_than hypot i0 index_add index_fill index_put lcm ldexp lerp less less_equal less_than lgamma log log10
log1p log2 logical_and logical_not logical_or logical_xor logit masked_fill masked_scatter mod mul multigammaln
multiply nan_to_num neg not_equal polygamma pow put_along_axis reciprocal remainder renorm round rsqrt scale
scatter scatter_add scatter_reduce sigmoid sin sinc sinh sqrt square sub subtract tan tanh tril triu trunc where
"""
RESHAPING = "cast flatten reshape squeeze t transpose unsqueeze"  # these may change shape or dtype


def _declare(name: str, reshaping: bool) -> None:
    declaration = REGISTRY[f"paddle.{name}"]
    function = declaration.implementation
    position = 1 if name == "where" else 0  # `where_` changes x, its second argument
    changed = list(declaration.signature.parameters)[position]
    spellings: dict[str, list[str]] = {p: [] for p in declaration.signature.parameters if p not in ("name", "out")}
    for alias, parameter in declaration.aliases.items():
        spellings[parameter].append(alias)
    aliases: Any = {parameter: " ".join(words) for parameter, words in spellings.items()}

    def call(*args: Any, **kwargs: Any) -> Tensor:
        made = function(*args, **kwargs)
        return _become(args[position], made) if reshaping else _copy(args[position], made)

    call.__name__ = f"{name}_"
    call.__doc__ = f"`{name}` in place: the result is written into `{changed}`."
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    api(out=False, variadic=declaration.variadic, compat=" ".join(declaration.forbidden), **aliases)(call)


def _copy(target: Tensor, made: Tensor) -> Tensor:
    """`target` with the values of `made`, and with its dtype where no gradient would get lost by that."""
    if made.shape != target.shape:
        raise ValueError(f"an in-place result of shape {list(made.shape)} does not fit the {list(target.shape)} of x")
    if made.dtype != target.dtype and not (made.requires_grad or target.requires_grad):
        target.data = made
        return target
    return target.copy_(made)


def _become(target: Tensor, made: Tensor) -> Tensor:
    """`target` with the shape or dtype of `made`, which gradients flow through where it is a view."""
    if made.dtype == target.dtype and made.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
        return target.as_strided_(made.shape, made.stride(), made.storage_offset())
    target.data = made.detach()
    return target


for _name in NAMES.split():
    _declare(_name, False)
for _name in RESHAPING.split():
    _declare(_name, True)
