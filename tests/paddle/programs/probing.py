"""What the probes share: inputs, results in JSON's types, and the loop that runs the functions of a probe."""

import json
import os
import sys
import traceback

import numpy as np
import paddle


def plain(value):
    """The value in JSON's types."""
    if isinstance(value, paddle.Tensor):
        return [str(value.dtype).split(".")[-1], list(value.shape), value.astype("float32").numpy().tolist()]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def numbers(*shape, seed=0):
    return paddle.to_tensor(np.random.RandomState(seed + sum(shape)).standard_normal(shape).astype("float32"))


def leaf(*shape, seed=0):
    made = numbers(*shape, seed=seed)
    made.stop_gradient = False
    return made


def raised(function):
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def filled(layer):
    for number, parameter in enumerate(p for p in layer.parameters() if not p.stop_gradient):
        drawn = np.random.RandomState(number).standard_normal(parameter.shape)
        parameter.set_value(drawn.astype("float32") * 0.3)
    return layer


def name_of(tensor):
    return str(tensor.dtype).split(".")[-1]


def main(probes):
    """Run every function of a module's dict; what it returns, or the class of what it raises, goes into a file.

    The command line names the folder; the file has the module's name.
    """
    found = {}
    module = probes["__name__"]
    for name, program in list(probes.items()):
        is_mine = getattr(program, "__module__", None) == module and not isinstance(program, type)
        if not is_mine or name.startswith("_"):
            continue
        try:
            found[name] = plain(program())
        except Exception as error:
            found[name] = {"raised": type(error).__name__}
            traceback.print_exc()
    title = os.path.splitext(os.path.basename(probes["__file__"]))[0]
    with open(os.path.join(sys.argv[1], f"{title}.json"), "w") as file:
        json.dump(found, file)
    print(len(found), "probes")
