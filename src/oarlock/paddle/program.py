"""Run a Paddle program on torch, unchanged: `import paddle` resolves to `oarlock.paddle` in this process tree only."""

import contextlib
import importlib
import importlib.util
import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = "oarlock.paddle"
SHIM = Path(__file__).parent / "shim"
STRICT = "OARLOCK_PADDLE_STRICT"  # tells child processes which Tensor class the program asked for


class _Modules(MetaPathFinder, Loader):
    """Answers `paddle` and `paddle.x.y` with the modules of Oarlock themselves, not with copies."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != "paddle" and not fullname.startswith("paddle."):
            return None
        if importlib.util.find_spec(f"oarlock.{fullname}") is None:
            raise ModuleNotFoundError(
                f"there is no {fullname} on torch yet. `oarlock paddle check FILE` lists what a program uses and has.",
                name=fullname,
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"oarlock.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the import system only lent the module another spec, which is given back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


@contextlib.contextmanager
def as_paddle(strict: bool = False) -> Iterator[None]:
    """Within the block, `import paddle` gives `oarlock.paddle`, with the names of Paddle's tensors on torch.Tensor.

    Child processes that start within the block inherit it, those of `multiprocessing` too.

    Args:
        strict: tensors follow Paddle's conventions where the two conflict (`oarlock.paddle.strict`).

    Raises:
        RuntimeError: the real Paddle was imported before.
    """
    import oarlock.paddle as paddle

    present = sys.modules.get("paddle")
    if present is not None and present is not paddle:
        raise RuntimeError(f"paddle is imported already, from {present.__file__}; start a fresh process")
    names = paddle.patch_tensor(copy_arrays=True)  # first, as it alone may fail
    finder = _Modules()
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", STRICT)}
    sys.meta_path.insert(0, finder)
    sys.path.append(str(SHIM))  # children of `multiprocessing` get this list instead of PYTHONPATH
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SHIM), before["PYTHONPATH"]]))
    os.environ[STRICT] = str(int(strict))
    try:
        with warnings.catch_warnings(), paddle.strict() if strict else contextlib.nullcontext():
            # float(loss) is how one reads a loss in Paddle.
            warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True to a scalar")
            yield
    finally:
        if names:
            paddle.unpatch_tensor()
        sys.meta_path.remove(finder)
        sys.path.remove(str(SHIM))
        for name in [name for name in sys.modules if name == "paddle" or name.startswith("paddle.")]:
            del sys.modules[name]
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


_child = contextlib.ExitStack()


def install_in_child() -> None:
    """What the parent's `as_paddle` did, for the whole life of a child process."""
    sys.modules.pop("paddle", None)
    _child.enter_context(as_paddle(os.environ.get(STRICT) == "1"))


def run_program(script: str, arguments: Sequence[str] = (), strict: bool = False) -> None:
    """Run a script as `python script arguments...` would, with `paddle` resolved here."""
    path = Path(script)
    if not path.is_file():
        raise FileNotFoundError(f"there is no program {script!r}")
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [script, *arguments], [str(path.resolve().parent)]
    try:
        with as_paddle(strict):
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
