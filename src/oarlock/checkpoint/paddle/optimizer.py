"""States of Paddle's Adam and AdamW under the names that torch's states have here."""

import json
import re

from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.source import TensorSource

_SLOTS = {"moment1_0": "exp_avg", "moment2_0": "exp_avg_sq", "w_0": "master"}
_FLEX = re.compile(r"(?P<parameter>.+)\.(?P<slot>moment[12]_0|w_0)")
_PDOPT = re.compile(r"master_weights\.(?P<master>.+)|(?P<parameter>.+?)(_fp32_master_0)?_(?P<slot>moment[12]_0)")
_NAMES = "StructuredToParameterName@@."


def adamw_states(states: TensorSource, parameters: TensorSource | None = None) -> TensorSource:
    """Moments and master weights as `exp_avg/NAME`, `exp_avg_sq/NAME`, `master/NAME`, the names of optimizer_tensors.

    Both libraries define the moments alike. Paddle keeps beta^(step + 1) instead of the number of steps, which float32
    does not tell exactly, so `step` is not among them.

    Args:
        states: a `.pdopt`, or a FlexCheckpoint of a model and its optimizer.
        parameters: with a `.pdopt` the `.pdparams` beside it, which says what the optimizer calls the parameters.

    Raises:
        CheckpointError: no such states, or those of a parameter that `parameters` does not name.
    """
    form = _FLEX if parameters is None else _PDOPT
    names = {} if parameters is None else _names(parameters)
    found = {}
    for name, tensor in states.tensors.items():
        if (match := form.fullmatch(name)) is None:
            continue
        groups = match.groupdict()
        parameter = groups["parameter"] or groups["master"]
        if parameters is not None and parameter not in names:
            raise CheckpointError(f"{states.label}: {parameters.label} has no parameter {parameter!r} for {name!r}")
        found[f"{_SLOTS[groups['slot'] or 'w_0']}/{names.get(parameter, parameter)}"] = tensor
    if not found:
        raise CheckpointError(f"{states.label} holds no states of Adam" + _advice(states, parameters))
    return TensorSource(states.label, found)


def _names(parameters: TensorSource) -> dict[str, str]:
    """What the optimizer calls a parameter -> its name in the model."""
    told = {name: text for name, text in parameters.metadata.items() if name.startswith(_NAMES)}
    return {json.loads(text): name.removeprefix(_NAMES) for name, text in told.items()}


def _advice(states: TensorSource, parameters: TensorSource | None) -> str:
    if parameters is None and any(map(_PDOPT.fullmatch, states.tensors)):
        return " under the model's names; pass the .pdparams beside it as well"
    return ""
