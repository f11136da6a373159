"""Paths of Paddle's own files, such as `paddle.nn.layer.conv`: here each of them has all names of its namespace."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from oarlock.paddle.declare import exports

# The namespace, where its files are, and their names.
FILES = """
tensor                tensor              attribute creation linalg logic manipulation math ops random search stat
nn.functional         nn.functional       activation common conv distance extension flash_attention input loss norm \
pooling sdpa vision
nn                    nn.layer            activation common container conv distance layers loss norm pooling rnn \
transformer vision
nn.initializer        nn.initializer      assign bilinear constant dirac initializer kaiming normal orthogonal \
uniform xavier
optimizer             optimizer           adadelta adagrad adam adamax adamw asgd lamb lbfgs momentum nadam optimizer \
radam rmsprop rprop sgd
io                    io                  dataloader reader
io                    io.dataloader       batch_sampler collate dataset sampler
metric                metric              metrics
autograd              autograd            backward_mode py_layer saved_tensors_hooks
"""


class _TensorNamespace(ModuleType):
    """`paddle.tensor`: a namespace, and the function that makes tensors."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A tensor."""
        return self.__wrapped__(*args, **kwargs)


def tensor_namespace(tensor: Callable[..., Any]) -> ModuleType:
    """The namespace `paddle.tensor`, which is also the function `tensor`."""
    made = _TensorNamespace("oarlock.paddle.tensor", tensor.__doc__)
    vars(made).update(vars(tensor), __wrapped__=tensor)
    for where in ("paddle.linalg", "paddle", "paddle.Tensor", "paddle.tensor", "paddle.tensor.search"):
        vars(made).update(exports(where))
    return _registered(made)


def add_files() -> None:
    """Make the paths, where there is a file of Oarlock's of that name: complete it."""
    for line in FILES.strip().splitlines():
        namespace, parent, *names = line.split()
        contents = sys.modules[f"oarlock.paddle.{namespace}"]
        package = sys.modules[f"oarlock.paddle.{parent}"]
        vars(package).setdefault("__path__", [])
        for name in names:
            present = sys.modules.get(f"{package.__name__}.{name}")
            if present is None and name not in vars(package):
                present = _registered(ModuleType(f"{package.__name__}.{name}", contents.__doc__))
                setattr(package, name, present)
            if present is not None:
                vars(present)["__getattr__"] = _Public(contents)
    framework, core = (sys.modules[f"oarlock.paddle.{name}"] for name in ("framework", "base.core"))
    vars(framework).setdefault("core", core)


class _Public:
    """The public names of another module, for `__getattr__` of a module."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __call__(self, name: str) -> Any:
        """What the name stands for."""
        if not name.startswith("_") and hasattr(self.module, name):
            return getattr(self.module, name)
        raise AttributeError(f"{self.module.__name__} has no {name!r}")


def _registered(module: ModuleType) -> ModuleType:
    module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
    module.__path__ = []
    sys.modules[module.__name__] = module
    return module
