"""Optimizer state under parameter names: tensors such as `exp_avg/layers.0.weight`, and JSON for all the rest.

torch numbers parameters by their place in the groups; names survive a reordering and say what is missing. Unlike
Optimizer.load_state_dict, loading never casts: fp32 moments of a bf16 parameter stay fp32, bit for bit.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.checkpoint.near_miss import near_names

NamedParameters = Iterable[tuple[str, Tensor]]

_LIKE_PARAMETER = "parameter"
_NOT_OPTIONS = {"params", "param_names"}


def optimizer_tensors(optimizer: Optimizer, named_parameters: NamedParameters) -> dict[str, Tensor]:
    """All tensors of the optimizer's state, not copied: `<state>/<parameter>`, such as `exp_avg/layers.0.weight`.

    Tensors inside lists or dicts get a dotted state name (`old_dirs.0/weight`), tensors among the options of a group
    (a tensor learning rate) `group0.lr`.

    Args:
        optimizer: any torch.optim optimizer whose state is made of tensors, numbers, strings and containers of them.
        named_parameters: as from module.named_parameters(); must name every parameter of the optimizer.

    Raises:
        ValueError: a parameter without a name, or state that belongs to no parameter; TypeError: state of another kind.
    """
    return _Flat(optimizer, named_parameters).tensors


def optimizer_state(optimizer: Optimizer, named_parameters: NamedParameters) -> dict[str, Any]:
    """The rest of the optimizer's state as JSON: groups with options and parameter shapes, which tensors belong to
    which parameter, state that is no tensor. Arguments and errors as for optimizer_tensors."""
    return _Flat(optimizer, named_parameters).state


@torch.no_grad()
def load_optimizer(
    optimizer: Optimizer,
    named_parameters: NamedParameters,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    options: bool = True,
) -> None:
    """Give an optimizer the state that optimizer_tensors and optimizer_state described; bitwise, all or nothing.

    Args:
        optimizer: of the same class over parameters of the same names and shapes; state it has is replaced.
        named_parameters: as from module.named_parameters().
        tensors: copied to the device of their parameter; like torch, a `step` stays on the CPU unless the group is
            `fused` or `capturable`.
        state: from optimizer_state.
        options: also restore the groups' options (learning rate, betas, ...); the groups must then hold the same
            parameters as those saved.

    Raises:
        ValueError: another class, parameters or tensors missing, unexpected or of another shape; each is named.
    """
    names = _names(optimizer, named_parameters)
    _check_parameters(optimizer, names, state, options)
    parameters = {name: (p, group) for group in optimizer.param_groups for p in group["params"] for name in [names[p]]}
    used: set[str] = set()
    copies: dict[tuple[int, torch.device], Tensor] = {}  # a tensor shared by several groups stays shared

    def take(key: str, shape: list[int] | None, device: torch.device) -> Tensor:
        used.add(key)
        if key not in tensors:
            near = near_names(key, tensors)
            raise ValueError(f"optimizer tensor {key!r} is missing" + (f"; there is {near[0]!r}" if near else ""))
        if shape is not None and list(tensors[key].shape) != shape:
            raise ValueError(f"optimizer tensor {key!r} has shape {list(tensors[key].shape)}, expected {shape}")
        place = (id(tensors[key]), device)
        if place not in copies:
            copies[place] = tensors[key].detach().to(device, copy=True)
        return copies[place]

    loaded: dict[Tensor, dict[str, Any]] = {}
    for pattern in state["slots"]:
        for name in pattern["parameters"]:
            parameter, group = parameters[name]
            values = loaded.setdefault(parameter, {})
            for slot, shape in pattern["names"].items():
                on_cpu = slot == "step" and not (group.get("fused") or group.get("capturable"))
                expected = list(parameter.shape) if shape == _LIKE_PARAMETER else shape
                values[slot] = take(f"{slot}/{name}", expected, torch.device("cpu") if on_cpu else parameter.device)
    for name, slots in state["other"].items():
        parameter, _ = parameters[name]
        for slot, value in slots.items():
            loaded.setdefault(parameter, {})[slot] = _decode(value, take, parameter.device)
    new_options: list[dict[str, Any]] = []
    for saved in state["groups"]:
        device = next((parameters[name][0].device for name in saved["parameters"]), torch.device("cpu"))
        new_options.append({key: _decode(value, take, device) for key, value in saved["options"].items()})
    unexpected = sorted(set(tensors) - used)
    if unexpected:
        raise ValueError(f"{len(unexpected)} tensors belong to no state of this optimizer, such as {unexpected[0]!r}")
    optimizer.state.clear()
    optimizer.state.update(loaded)
    if options:
        for group, values in zip(optimizer.param_groups, new_options, strict=True):
            group.update(values)


class _Flat:
    """Walks an optimizer once and sorts what it finds into tensors and JSON."""

    def __init__(self, optimizer: Optimizer, named_parameters: NamedParameters) -> None:
        names = _names(optimizer, named_parameters)
        stray = [key for key in optimizer.state if key not in names]
        if stray:
            raise ValueError(f"the optimizer keeps state for {stray[0]!r}, which is none of its parameters")
        self.tensors: dict[str, Tensor] = {}
        groups = []
        for index, group in enumerate(optimizer.param_groups):
            options = {
                key: self._encode(value, f"group{index}.{key}", "")
                for key, value in group.items()
                if key not in _NOT_OPTIONS
            }
            groups.append({"options": options, "parameters": {names[p]: list(p.shape) for p in group["params"]}})
        patterns: dict[tuple[Any, ...], dict[str, Any]] = {}
        other: dict[str, dict[str, Any]] = {}
        for parameter, name in names.items():
            slots: dict[str, Any] = {}
            for slot, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    self._add(f"{slot}/{name}", value)
                    slots[slot] = _LIKE_PARAMETER if value.shape == parameter.shape else list(value.shape)
                else:
                    other.setdefault(name, {})[slot] = self._encode(value, slot, f"/{name}")
            if slots:  # parameters with the same states share one entry
                key = tuple((slot, str(shape)) for slot, shape in slots.items())
                patterns.setdefault(key, {"names": slots, "parameters": []})["parameters"].append(name)
        self.state = {
            "class": type(optimizer).__name__,
            "groups": groups,
            "slots": list(patterns.values()),
            "other": other,
        }

    def _add(self, key: str, tensor: Tensor) -> None:
        if key in self.tensors:
            raise ValueError(f"two tensors of the optimizer's state would both be named {key!r}")
        self.tensors[key] = tensor

    def _encode(self, value: Any, stem: str, suffix: str) -> Any:
        """JSON for a value; a container or a tensor becomes an object with its kind as the only key."""
        if isinstance(value, Tensor):
            self._add(stem + suffix, value)
            return {"tensor": stem + suffix}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self._encode(item, f"{stem}.{index}", suffix) for index, item in enumerate(value)]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._encode(item, f"{stem}.{key}", suffix) for key, item in value.items()}}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"{stem}{suffix}: a {type(value).__name__} cannot be saved without pickle")


def _decode(value: Any, take: Any, device: torch.device) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "tensor":
        return take(content, None, device)
    if kind == "dict":
        return {key: _decode(item, take, device) for key, item in content.items()}
    items = [_decode(item, take, device) for item in content]
    return tuple(items) if kind == "tuple" else items


def _names(optimizer: Optimizer, named_parameters: NamedParameters) -> dict[Tensor, str]:
    """Parameter -> name, for the optimizer's parameters in the order of its groups."""
    name_of: dict[Tensor, str] = {}
    for name, parameter in named_parameters:
        name_of.setdefault(parameter, name)  # a tied parameter goes by its first name
    ordered: dict[Tensor, str] = {}
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in name_of:
                shape = tuple(parameter.shape)
                raise ValueError(f"named_parameters has no name for a parameter of shape {shape} in group {index}")
            ordered[parameter] = name_of[parameter]
    return ordered


def _check_parameters(
    optimizer: Optimizer, names: Mapping[Tensor, str], state: Mapping[str, Any], options: bool
) -> None:
    """The same class over the same parameters, each named if it differs."""
    found = type(optimizer).__name__
    if state["class"] != found:
        raise ValueError(f"the state was saved by {state['class']}, this optimizer is {found}")
    saved = {name: shape for group in state["groups"] for name, shape in group["parameters"].items()}
    present = {name: list(parameter.shape) for parameter, name in names.items()}
    for ours, theirs, text in ((present, saved, "the saved state lacks"), (saved, present, "the optimizer lacks")):
        absent = [name for name in ours if name not in theirs]
        if absent:
            near = near_names(absent[0], theirs)
            hint = f" (it has {near[0]!r})" if near else ""
            raise ValueError(f"{text} {len(absent)} parameters, such as {absent[0]!r}{hint}")
    for name, shape in present.items():
        if saved[name] != shape:
            raise ValueError(f"parameter {name!r} has shape {shape}, its saved optimizer state is for {saved[name]}")
    if options:
        grouping = [sorted(names[p] for p in group["params"]) for group in optimizer.param_groups]
        if grouping != [sorted(group["parameters"]) for group in state["groups"]]:
            raise ValueError(
                "the optimizer's groups hold other parameters than those saved; build the same groups, "
                "or pass options=False to keep the options that the groups have now"
            )
