"""Layers that hold layers or parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from torch import nn

from oarlock.paddle.nn.layer.layers import Layer


class Sequential(Layer):
    """One layer after the other: `Sequential(a, b)` or `Sequential(("first", a), ("second", b))`."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        if len(layers) == 1 and isinstance(layers[0], (list, tuple)) and not isinstance(layers[0][0], str):
            layers = tuple(layers[0])
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            layers = tuple(layers[0].items())
        for number, layer in enumerate(layers):
            name, part = layer if isinstance(layer, (list, tuple)) else (str(number), layer)
            self.add_sublayer(name, part)

    def forward(self, input: Any) -> Any:
        """Through all of them."""
        for layer in self._modules.values():
            assert layer is not None
            input = layer(input)
        return input

    def __getitem__(self, index: Any) -> Any:
        layers = list(self._modules.values())
        if isinstance(index, slice):
            return Sequential(*layers[index])
        return self._modules[index] if isinstance(index, str) else layers[index]

    def __setitem__(self, index: Any, layer: nn.Module) -> None:
        self._modules[index if isinstance(index, str) else list(self._modules)[index]] = layer

    def __delitem__(self, index: Any) -> None:
        del self._modules[index if isinstance(index, str) else list(self._modules)[index]]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    def append(self, layer: nn.Module) -> Sequential:
        """Add a layer at the end."""
        self.add_sublayer(str(len(self)), layer)
        return self

    def extend(self, layers: Iterable[nn.Module]) -> Sequential:
        """Add layers at the end."""
        for layer in layers:
            self.append(layer)
        return self

    def insert(self, index: int, layer: nn.Module) -> Sequential:
        """Put a layer before the one at `index`; names are numbers anew."""
        if not -len(self) <= index <= len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} layers")
        layers = list(self._modules.values())
        layers.insert(index, layer)
        self._modules.clear()
        self._modules.update({str(number): each for number, each in enumerate(layers)})
        return self


class LayerList(Layer):
    """A list of layers."""

    def __init__(self, sublayers: Iterable[nn.Module] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    @overload
    def __getitem__(self, index: slice) -> LayerList: ...
    @overload
    def __getitem__(self, index: int) -> Any: ...
    def __getitem__(self, index: int | slice) -> Any:
        layers = list(self._modules.values())
        return LayerList(layers[index]) if isinstance(index, slice) else layers[index]  # type: ignore[arg-type]

    def __setitem__(self, index: int, layer: nn.Module) -> None:
        self._modules[str(range(len(self))[index])] = layer

    def __delitem__(self, index: int | slice) -> None:
        layers = list(self._modules.values())
        del layers[index]
        self._renumber(layers)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def append(self, sublayer: nn.Module) -> LayerList:
        """Add a layer at the end."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def extend(self, sublayers: Iterable[nn.Module]) -> LayerList:
        """Add layers at the end."""
        for layer in sublayers:
            self.append(layer)
        return self

    def insert(self, index: int, sublayer: nn.Module) -> None:
        """Put a layer before another.

        Raises:
            IndexError: there is none of that number, nor the end.
        """
        if not -len(self) <= index <= len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} layers")
        layers = list(self._modules.values())
        layers.insert(index, sublayer)
        self._renumber(layers)

    def pop(self, index: int = -1) -> nn.Module:
        """Take a layer out."""
        layers = list(self._modules.values())
        taken = layers.pop(index)
        self._renumber(layers)
        return taken  # type: ignore[return-value]

    def _renumber(self, layers: Iterable[nn.Module | None]) -> None:
        self._modules.clear()
        self._modules.update({str(i): layer for i, layer in enumerate(layers)})


class LayerDict(Layer):
    """Layers by name."""

    def __init__(self, sublayers: Any = None) -> None:
        super().__init__()
        self.update(sublayers or {})

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, layer: nn.Module) -> None:
        self.add_sublayer(key, layer)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Drop all."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Take one out."""
        return self._modules.pop(key)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """The layers."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Both."""
        return self._modules.items()

    def update(self, sublayers: Any) -> None:
        """Add those of a dict or of pairs."""
        for key, layer in sublayers.items() if isinstance(sublayers, Mapping) else sublayers:
            self.add_sublayer(key, layer)


class ParameterList(Layer):
    """A list of parameters."""

    def __init__(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        super().__init__()
        for parameter in parameters or ():
            self.append(parameter)

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]

    def __setitem__(self, index: int, parameter: nn.Parameter) -> None:
        self._parameters[str(range(len(self))[index])] = parameter

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def append(self, parameter: nn.Parameter) -> ParameterList:
        """Add one at the end."""
        self.add_parameter(str(len(self)), parameter)
        return self


class ParameterDict(Layer):
    """Parameters by name."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key]

    def __setitem__(self, key: str, parameter: nn.Parameter) -> None:
        self.add_parameter(key, parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def update(self, parameters: Any) -> None:
        """Add those of a dict or of pairs."""
        for key, parameter in parameters.items() if isinstance(parameters, Mapping) else parameters:
            self.add_parameter(key, parameter)
