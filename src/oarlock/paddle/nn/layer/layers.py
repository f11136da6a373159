"""`Layer`, the base of all layers: a torch.nn.Module with Paddle's names for its parts."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from oarlock.paddle.dtypes import as_device, as_dtype, as_ints
from oarlock.paddle.nn.initializer import default_initializer
from oarlock.paddle.nn.parameter import ParamAttr, Parameter
from oarlock.paddle.utils.unique_name import generate


class Layer(nn.Module):
    """A part of a network.

    Args:
        name_scope: prefix of the names of its parameters; the class's name by default.
        dtype: of its parameters.
    """

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32") -> None:
        super().__init__()
        self._dtype = as_dtype(dtype) or torch.get_default_dtype()
        self._full_name = generate(name_scope or _snake(type(self).__name__))
        self._num_parameters = {"w": 0, "b": 0}

    def full_name(self) -> str:
        """The name that is unique in the process, such as `linear_0`."""
        return self._full_name

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a weight that is made of parameters before each forward is copied by its value."""
        state = dict(self.__dict__)
        return state | {name: state[name].detach() for name in state.get("_made_weights", ()) if name in state}

    def __repr__(self) -> str:
        """The class with `extra_repr`, and the layers below with their names, each on lines of its own."""
        extra = self.extra_repr().split("\n")
        inner = extra[0] if len(extra) == 1 else "".join(f"\n  {line}" for line in extra) + "\n"
        parts = [f"({name}): {layer!r}".replace("\n", "\n  ") for name, layer in self._modules.items()]
        below = "".join(f"\n  {part}" for part in parts) + ("\n" if parts else "")
        return f"{type(self).__name__}({inner}{below})"

    # ------------------------------------------------------------------------------------------------- making parts

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Callable[[Tensor], Any] | None = None,
        device: Any = None,
        requires_grad: bool = True,
    ) -> Parameter | None:
        """A parameter, filled; None where `attr` is False. Assign it to an attribute to make it part of the layer.

        Args:
            shape: its sizes.
            attr: a ParamAttr, a name, an initialiser; False for none.
            dtype: `paddle.get_default_dtype()` by default.
            is_bias: filled with zeros by default, other parameters by XavierUniform.
            default_initializer: where `attr` has none.
        """
        chosen = ParamAttr.of(attr)
        if chosen is None:
            return None
        kind = "b" if is_bias else "w"
        prefix = f"{self._full_name}.{kind}"
        chosen_dtype = as_dtype(dtype) or torch.get_default_dtype()
        tensor = torch.empty(as_ints(shape), dtype=chosen_dtype, device=as_device(device))
        made = chosen.make(tensor, default_initializer or _default(is_bias), prefix)
        if not requires_grad:
            made.requires_grad_(False)
        return made

    def create_tensor(self, name: str | None = None, persistable: bool | None = None, dtype: Any = None) -> Tensor:
        """An empty tensor of the layer's dtype."""
        return torch.empty(0, dtype=as_dtype(dtype) or self._dtype)

    create_variable = create_tensor

    def add_parameter(self, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        """Make a parameter part of the layer."""
        self.register_parameter(name, parameter)
        return parameter

    def add_sublayer(self, name: str, sublayer: nn.Module) -> nn.Module:
        """Make a layer part of this one; names may hold dots nowhere."""
        self.add_module(str(name), sublayer)
        return sublayer

    def register_buffer(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, name: str, tensor: Tensor | None, persistable: bool = True, **more: Any
    ) -> None:
        """A tensor that belongs to the layer and is not trained; `persistable` ones are in the state dict."""
        super().register_buffer(name, tensor, more.get("persistent", persistable))

    def __setattr__(self, name: str, value: Any) -> None:
        """A tensor that is assigned becomes a buffer, which moves with the layer and is not in the state dict."""
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            own = self.__dict__
            buffers = own.get("_buffers")
            if buffers is not None and name in buffers:
                buffers[name] = value
                return
            # A property keeps its setter; a parameter's name refuses other tensors.
            if buffers is not None and name not in own["_parameters"] and not hasattr(type(self), name):
                own.pop(name, None)
                super().register_buffer(name, value, False)
                return
        super().__setattr__(name, value)

    def get_sublayer(self, target: str) -> nn.Module:
        """The layer by its full name, such as `encoder.0.linear`; itself for ""."""
        return self.get_submodule(target)

    def set_sublayer(self, target: str, layer: nn.Module, strict: bool = False) -> None:
        """Put a layer where the full name says; with `strict` only in place of another."""
        self.set_submodule(target, layer, strict)

    # --------------------------------------------------------------------------------------------------- its parts

    def parameters(self, include_sublayers: bool = True, **more: Any) -> list[nn.Parameter]:  # type: ignore[override]
        """Its parameters, each once."""
        return list(super().parameters(more.get("recurse", include_sublayers)))

    def named_parameters(  # type: ignore[override]
        self, prefix: str = "", include_sublayers: bool = True, remove_duplicate: bool = True, **more: Any
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Its parameters with their names in the state dict."""
        return super().named_parameters(prefix, more.get("recurse", include_sublayers), remove_duplicate)

    def buffers(self, include_sublayers: bool = True, **more: Any) -> list[Tensor]:  # type: ignore[override]
        """Its buffers, each once."""
        return list(super().buffers(more.get("recurse", include_sublayers)))

    def named_buffers(  # type: ignore[override]
        self, prefix: str = "", include_sublayers: bool = True, remove_duplicate: bool = True, **more: Any
    ) -> Iterator[tuple[str, Tensor]]:
        """Its buffers with their names."""
        return super().named_buffers(prefix, more.get("recurse", include_sublayers), remove_duplicate)

    def sublayers(self, include_self: bool = False) -> list[nn.Module]:
        """All layers below."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, layers_set: set[Any] | None = None,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, nn.Module]]:  # fmt: skip
        """All layers below, with their names."""
        for name, layer in self.named_modules(layers_set, prefix, remove_duplicate):
            if include_self or layer is not self:
                yield name, layer

    def children(self) -> list[nn.Module]:  # type: ignore[override]
        """The layers directly below."""
        return list(super().children())

    # ------------------------------------------------------------------------------------------------------- hooks

    def register_forward_post_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Any:
        """Called with (layer, inputs, outputs) behind forward; what it returns replaces the outputs."""
        return self.register_forward_hook(hook, prepend=prepend, with_kwargs=with_kwargs, always_call=always_call)

    def register_state_dict_hook(self, hook: Callable[[dict[str, Tensor]], Any]) -> Any:
        """Called with the state dict of this layer and those below, which it may change."""
        hooks = self.__dict__.setdefault("_own_state_hooks", OrderedDict())
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def backward(self, *inputs: Any) -> Any:
        """Layers have none.

        Raises:
            ValueError: always; call `backward()` of a tensor.
        """
        raise ValueError("Layer shouldn't implement backward: call backward() of a tensor")

    # ------------------------------------------------------------------------------------------------------- state

    def state_dict(  # type: ignore[override]
        self,
        destination: Any = None,
        include_sublayers: bool = True,
        structured_name_prefix: str = "",
        use_hook: bool = True,
        keep_vars: bool = True,
        **more: Any,
    ) -> dict[str, Tensor]:
        """Parameters and persistable buffers by name, the tensors themselves."""
        prefix = more.get("prefix", structured_name_prefix)
        if not include_sublayers:
            found: OrderedDict[str, Tensor] = OrderedDict()
            self._save_to_state_dict(found, prefix, True)
        else:
            found = super().state_dict(destination=destination, prefix=prefix, keep_vars=True)
        if not keep_vars:
            found = OrderedDict((name, value.detach()) for name, value in found.items())
        for hook in self.__dict__.get("_own_state_hooks", {}).values() if use_hook else ():
            hook(found)
        return found

    def to_static_state_dict(
        self, destination: Any = None, include_sublayers: bool = True, structured_name_prefix: str = ""
    ) -> dict[str, Tensor]:
        """`state_dict` with the buffers that are not persistable, too."""
        found = self.state_dict(destination, include_sublayers, structured_name_prefix)
        for name, value in super().named_buffers(recurse=include_sublayers):
            found.setdefault(structured_name_prefix + name, value)
        return found

    def set_state_dict(
        self, state_dict: Mapping[str, Any], use_structured_name: bool = True
    ) -> tuple[list[str], list[str]]:
        """Copy values into the parameters and buffers of the same names.

        Names without a value, and values of another shape, are left out with a warning that names them.

        Args:
            state_dict: name -> tensor or array.
            use_structured_name: names are those of `state_dict()`; False: those of the parameters themselves
                (`linear_0.w_0`).

        Returns:
            (names of the layer that got no value, names of `state_dict` that were not used).
        """
        own = self.state_dict()
        if not use_structured_name:
            own = {getattr(value, "name", None) or name: value for name, value in own.items()}
        matched: dict[str, Tensor] = {}
        for name, target in own.items():
            if name not in state_dict:
                warnings.warn(f"Skip loading for {name}. {name} is not found in the provided dict.", stacklevel=2)
                continue
            value = state_dict[name]
            source = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
            if source.shape == target.shape:
                matched[name] = source
                continue
            shapes = f"a shape {list(source.shape)}, but the expected shape is {list(target.shape)}"
            warnings.warn(f"Skip loading for {name}. {name} receives {shapes}.", stacklevel=2)
        with torch.no_grad():
            for name, source in matched.items():
                own[name].copy_(source)
        return [name for name in own if name not in matched], [name for name in state_dict if name not in matched]

    set_dict = load_dict = set_state_dict

    def clear_gradients(self, set_to_zero: bool = True) -> None:
        """Zero, or forget, the gradients of all parameters."""
        self.zero_grad(set_to_none=not set_to_zero)

    # -------------------------------------------------------------------------------------------- dtype and device

    def to(  # type: ignore[override]
        self,
        device: Any = None,
        dtype: Any = None,
        blocking: bool | None = None,
        non_blocking: bool | None = None,
        *,
        tensor: Tensor | None = None,
        other: Tensor | None = None,
        copy: bool = False,
    ) -> Self:
        """Move or convert parameters and buffers; only those of fractional dtypes are converted.

        Args:
            device: or a dtype, or a tensor whose device and dtype are taken.
            tensor, other: the same by name.
            copy: give parameters and buffers memory of their own, also where they are as asked for.
        """
        like = device if isinstance(device, Tensor) else other if tensor is None else tensor
        if like is not None:
            device, dtype = like.device, like.dtype
        if copy:
            for held in (*self.parameters(), *self.buffers()):
                held.data = held.data.clone()
        if isinstance(device, torch.dtype) or (isinstance(device, str) and device in _DTYPE_WORDS):
            device, dtype = None, device
        options = {"device": as_device(device), "dtype": as_dtype(dtype)}
        super().to(non_blocking=bool(non_blocking) or blocking is False, **{k: v for k, v in options.items() if v})
        if options["dtype"] is not None:
            for layer in self.modules():
                if isinstance(layer, Layer):
                    layer._dtype = options["dtype"]
        return self

    def astype(self, dtype: Any) -> Self:
        """Convert parameters and buffers of fractional dtypes."""
        return self.to(dtype=dtype)

    def float(self, excluded_layers: Any = None) -> Self:
        """float32."""
        return self._cast(torch.float32, excluded_layers)

    def float16(self, excluded_layers: Any = None) -> Self:
        """float16; layers of `excluded_layers` (`BatchNorm` by default) stay."""
        return self._cast(torch.float16, _norms() if excluded_layers is None else excluded_layers)

    def bfloat16(self, excluded_layers: Any = None) -> Self:
        """bfloat16; layers of `excluded_layers` (`BatchNorm` by default) stay."""
        return self._cast(torch.bfloat16, _norms() if excluded_layers is None else excluded_layers)

    def _cast(self, dtype: torch.dtype, excluded: Any) -> Self:
        kinds = tuple(excluded) if isinstance(excluded, Sequence) else (excluded,) if excluded else ()
        for layer in self.modules():
            if kinds and isinstance(layer, kinds):
                continue
            for tensor in (*layer._parameters.values(), *layer._buffers.values()):
                if tensor is not None and tensor.is_floating_point():
                    tensor.data = tensor.data.to(dtype)
        return self


_DTYPE_WORDS = frozenset(["float16", "bfloat16", "float32", "float64", "half", "float", "double"])


def _default(is_bias: bool) -> Callable[[Tensor], Any]:
    return default_initializer(is_bias)


def _norms() -> tuple[type[nn.Module], ...]:
    """What keeps its dtype by default: `BatchNorm` alone, not BatchNorm1D to 3D, as in Paddle."""
    from oarlock.paddle.nn.layer.norm import BatchNorm

    return (BatchNorm,)


def _snake(name: str) -> str:
    """Conv2DTranspose -> conv2d_transpose, as Paddle names scopes."""
    text = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower()
