"""`with paddle.strict():` every tensor follows Paddle's conventions where they conflict with torch's.

For porting and tests, in one thread. Within the block the functions of the namespace return tensors of the class
`StrictTensor`, a torch.Tensor whose attributes and methods are Paddle's: `shape` is a list, `size` an integer that can
be called, `max`, `sort`, `split` and so on are Paddle's, integers and fractions of one size do not mix.

A function takes its strict tensors for plain ones while it runs (their `__class__` changes for so long: nothing is
copied, gradients and changes in place are those of the same tensor) and its results become strict.
"""

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle import operators, tensor_class
from oarlock.paddle.autograd import PyLayer
from oarlock.paddle.declare import REGISTRY, Declaration, write
from oarlock.paddle.dtypes import NAMES, dtype_name, place_of
from oarlock.paddle.nn.parameter import Parameter
from oarlock.paddle.strict_types import IntSize, Size, StrictDType, VarType

# Functions of two tensors that take no integers beside fractions. The first group does where one of them is 0-D.
MIXING_SCALARS = """
add subtract multiply divide floor_divide remainder pow hypot copysign
equal not_equal less_than less_equal greater_than greater_equal
"""
NEVER_MIXING = "maximum minimum fmax fmin atan2 logaddexp nextafter logical_and logical_or logical_xor gcd lcm cross"
_MIXING_SCALARS, _NEVER_MIXING = frozenset(MIXING_SCALARS.split()), frozenset(NEVER_MIXING.split())


class InvalidArgument(ValueError, RuntimeError):
    """What torch refuses with a RuntimeError and Paddle with a ValueError."""


class _State:
    inside = False  # a function runs, or a backward pass: what strict tensors it meets are to behave as torch's
    depth = 0  # of `with strict()`
    plain: dict[str, Any] = {}  # noqa: RUF012 - names of the namespace as they were


def is_strict() -> bool:
    """Whether this is within `with strict():`."""
    return _State.depth > 0


def lend(value: Any, lent: list[Tensor]) -> Any:
    """`value` in torch's types. The strict tensors in it become plain ones until `lent` is given back."""
    kind = type(value)
    if kind is StrictTensor:
        value.__class__ = Tensor
        lent.append(value)
    elif kind is StrictDType:
        return value.plain
    elif kind is IntSize:
        return int(value)
    elif kind is list or kind is tuple or kind is dict:
        for part in value.values() if kind is dict else value:
            lend(part, lent)
    elif kind is types.FunctionType and not str(value.__module__).startswith(("torch", "oarlock.")):
        return _users(value)
    return value


def give_back(lent: list[Tensor]) -> None:
    """The lent tensors are strict again."""
    for tensor in lent:
        tensor.__class__ = StrictTensor


def adopt(value: Any) -> Any:
    """`value` in Paddle's types: the plain tensors in it become strict."""
    kind = type(value)
    if kind is Tensor:
        value.__class__ = StrictTensor
    elif kind is torch.nn.Parameter or kind is Parameter:
        value.__class__ = StrictTensor
        value._is_param = True  # by which torch knows a parameter
    elif kind is torch.Size:
        return Size(value)
    elif kind is torch.dtype:
        return StrictDType.of(value)
    elif isinstance(value, (list, tuple)):
        for part in value:
            adopt(part)
    elif kind is dict:
        for part in value.values():
            adopt(part)
    return value


def bounded(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """`function` on plain tensors, called with strict ones."""
    checked = name in _MIXING_SCALARS or name in _NEVER_MIXING

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        lent: list[Tensor] = []
        outermost, _State.inside = not _State.inside, True
        try:
            args = tuple([lend(value, lent) for value in args])
            kwargs = {key: lend(value, lent) for key, value in kwargs.items()}
            if checked and outermost:
                check_dtypes(name, *args[:2])
            made = function(*args, **kwargs)
        except RuntimeError as error:
            if type(error) is RuntimeError:
                raise InvalidArgument(str(error)) from error
            raise
        finally:
            _State.inside = not outermost
            give_back(lent)
        return adopt(made) if outermost else made

    return call


def _users(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the user, called by a bounded one: strict within."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before, _State.inside = _State.inside, False
        try:
            return lend(function(*[adopt(v) for v in args], **{k: adopt(v) for k, v in kwargs.items()}), [])
        finally:
            _State.inside = before

    return call


def check_dtypes(name: str, x: Any, y: Any = None) -> None:
    """Refuse the mixtures of dtypes that Paddle refuses.

    Raises:
        TypeError: two dtypes of which one is an integer's or bool and none complex.
    """
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dtype == y.dtype:
        return
    if (x.is_floating_point() and y.is_floating_point()) or x.is_complex() or y.is_complex():
        return
    if name in _NEVER_MIXING or (x.ndim and y.ndim):
        raise TypeError(
            f"{name}() takes no mixture of {dtype_name(x.dtype)} and {dtype_name(y.dtype)} in strict mode; "
            "cast one of them, as Paddle asks"
        )


class StrictTensor(Tensor):
    """A tensor with Paddle's conventions; see `strict`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lent: list[Tensor] = []
        try:
            args = tuple([lend(value, lent) for value in args])
            kwargs = {key: lend(value, lent) for key, value in (kwargs or {}).items()}
            made = func(*args, **kwargs)
        finally:
            give_back(lent)
        return made if _State.inside else adopt(made)

    @property
    def type(self) -> VarType:  # type: ignore[override]
        """The kind of tensor."""
        return Tensor.type.__get__(self) if _State.inside else VarType.DENSE_TENSOR  # type: ignore[return-value]

    @property
    def size(self) -> IntSize:  # type: ignore[override]
        """The number of elements; called, the shape or one size of it."""
        if _State.inside:
            return Tensor.size.__get__(self)  # type: ignore[return-value]
        return IntSize.of(Size(self.shape))

    @property
    def trainable(self) -> bool:
        """Whether a parameter takes part in training."""
        return self.requires_grad

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self.requires_grad_(trainable)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if self.layout != torch.strided:
            return super().__repr__(tensor_contents=tensor_contents)
        head = f"shape={list(self.shape)}, dtype={str(self.dtype).removeprefix('paddle.')}, place={place_of(self)}"
        values = np.array2string(self.numpy(), separator=", ", prefix=" " * 7)
        return f"Tensor({head}, stop_gradient={not self.requires_grad},\n       {values})"


def _plainly(read: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """An attribute read from a strict tensor as from a plain one."""

    def get(self: Tensor) -> Any:
        self.__class__ = Tensor
        try:
            found = read(self)
        finally:
            self.__class__ = StrictTensor
        return found if _State.inside else adopt(found)

    return get


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    paddles = bounded(function, name.removesuffix("_"))
    torchs = getattr(Tensor, name, None)

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        if torchs is not None and (_State.inside or "generator" in kwargs):  # torch's initialisers name one
            return torchs(*args, **kwargs)
        return paddles(*args, **kwargs)

    return method


def _operator(plain: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    slow = bounded(plain, name)

    def operator(x: Tensor, y: Any) -> Any:
        if y.__class__ is not StrictTensor:
            return slow(x, y)
        x.__class__ = y.__class__ = Tensor  # the short way for two tensors of one dtype
        try:
            made = plain(x, y) if x.dtype is y.dtype else None
        finally:
            x.__class__ = y.__class__ = StrictTensor
        if made is None:
            return slow(x, y)
        made.__class__ = StrictTensor
        return made

    return operator


def _fill_class() -> None:
    for name, attribute in tensor_class.PADDLES.items():
        if isinstance(attribute, property):
            assert attribute.fget is not None
            setattr(StrictTensor, name, property(_plainly(attribute.fget), attribute.fset, doc=attribute.__doc__))
        elif name in operators.INDEXING or (name not in StrictTensor.__dict__ and not name.startswith("__")):
            setattr(StrictTensor, name, _method(name, attribute))
    for special, function in operators.operators().items():
        word = special.strip("_")
        word = word if word in operators.FUNCTIONS else word.removeprefix("r")
        setattr(StrictTensor, special, _operator(function, operators.FUNCTIONS[word]))
        if special in (
            "__add__",
            "__sub__",
            "__mul__",
            "__truediv__",
            "__floordiv__",
            "__mod__",
            "__pow__",
            "__matmul__",
            "__and__",
            "__or__",
            "__xor__",
            "__lshift__",
            "__rshift__",
        ):
            # `x += y` makes a new tensor, as Paddle's does
            setattr(StrictTensor, f"__i{word}__", getattr(StrictTensor, special))
    for name in ("real", "imag"):  # methods in Paddle, attributes in torch
        setattr(StrictTensor, name, bounded(REGISTRY[f"paddle.{name}"].function))
    for name in ("shape", "dtype", "ndim"):
        setattr(StrictTensor, name, property(_plainly(getattr(Tensor, name).__get__)))


@functools.cache
def _bounded_slot(name: str) -> dict[str, Any]:
    declaration = REGISTRY[name]
    short = declaration.names[0].rpartition(".")[2].removesuffix("_")
    return {"_call": bounded(declaration.implementation, short), "_write": bounded(write)}


def _declarations() -> list[Declaration]:
    return list({id(declaration): declaration for declaration in REGISTRY.values()}.values())


class strict(contextlib.ContextDecorator):
    """Paddle's conventions within the block, or within the function that it decorates.

    | | plain torch.Tensor | within `strict()` |
    |---|---|---|
    | `x.shape` | `torch.Size`, a tuple | `paddle.Size`, a list: `== [1, 3]`, `+ [1]` |
    | `x.size` | a method | an integer that can be called |
    | `x.numel()` | an integer | a 0-D tensor |
    | `x.max(1)`, `x.sort()`, `x.split(3)`, ... | torch's | Paddle's |
    | int tensor + float tensor | promoted | TypeError |
    | `x.dtype` | `torch.float32` | prints as `paddle.float32`, equal to both |
    | `x += y` | changes `x` | makes a new tensor |
    | `y.backward()` of many elements | refused | weights of one |
    """

    def __enter__(self) -> "strict":
        if _State.depth == 0:
            _enter()
        _State.depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        _State.depth -= 1
        if _State.depth == 0:
            _leave()


_register = torch.nn.Module.register_parameter


def _register_strictly(self: torch.nn.Module, name: str, param: Any) -> None:
    """A parameter of a layer that is made in strict mode is strict: `layer.weight.shape` is a list."""
    _register(self, name, adopt(param))


_apply = PyLayer.apply.__func__  # type: ignore[attr-defined]


@functools.cache
def _twin(layer: type[PyLayer]) -> type[PyLayer]:
    """The operation, whose backward is the user's code within a backward pass."""
    strictly = _users(layer.backward)

    def backward(ctx: Any, *grads: Any) -> Any:
        adopt(ctx.saved_tensor())
        return strictly(ctx, *grads)

    return type(layer.__name__, (layer,), {"backward": staticmethod(backward)})


def _apply_strictly(cls: type[PyLayer], *args: Any, **kwargs: Any) -> Any:
    return _apply(_twin(cls), *args, **kwargs)


def _enter() -> None:
    import oarlock.paddle as paddle

    PyLayer.apply = classmethod(_apply_strictly)  # type: ignore[method-assign]
    torch.nn.Module.register_parameter = _register_strictly
    for declaration in _declarations():
        declaration.slot.update(_bounded_slot(declaration.names[0]))
    tensor_class.MAKE = bounded(tensor_class.construct)
    for name, operator in {**operators.operators(), **operators.INDEXING}.items():
        tensor_class.PADDLES[name] = bounded(operator)
    swapped = {name: StrictDType.of(dtype) for name, dtype in NAMES.items()} | {"dtype": StrictDType, "Size": Size}
    _State.plain = {name: getattr(paddle, name) for name in swapped}
    for name, value in swapped.items():
        setattr(paddle, name, value)


def _leave() -> None:
    import oarlock.paddle as paddle

    torch.nn.Module.register_parameter = _register
    PyLayer.apply = classmethod(_apply)  # type: ignore[method-assign]
    for declaration in _declarations():
        declaration.slot.update(_call=declaration.implementation, _write=write)
    tensor_class.MAKE = tensor_class.construct
    tensor_class.PADDLES.update({**operators.operators(), **operators.INDEXING})
    for name, value in _State.plain.items():
        setattr(paddle, name, value)


_fill_class()
StrictTensor.__name__ = StrictTensor.__qualname__ = "Tensor"
