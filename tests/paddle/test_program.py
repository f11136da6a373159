"""`import paddle` resolves to Oarlock within a program and its children, and nowhere else: real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oarlock.paddle.program import as_paddle, run_program

PROGRAM = """
import multiprocessing, sys
import paddle
import paddle.nn.functional as F
from paddle import nn

def child(queue):
    import paddle
    queue.put((paddle.__name__, paddle.ones([2]).astype("int32").sum().item()))

if __name__ == "__main__":
    try:
        import paddle.no_such_module
    except ImportError as error:
        print(error)
    print(paddle.__name__, sys.argv[1:], F is nn.functional, paddle.ones([2, 3]).astype("float64").dtype)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


def test_program_and_its_child_process(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    code = f"from oarlock.paddle.program import run_program; run_program({str(path)!r}, ['--steps', '3'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    absent, here, child = done.stdout.splitlines()
    assert absent.startswith("there is no paddle.no_such_module on torch yet")
    assert here == "oarlock.paddle ['--steps', '3'] True torch.float64"
    assert child == "('oarlock.paddle', 2)"


def _use_and_fail() -> None:
    import paddle

    assert paddle.__name__ == "oarlock.paddle"
    assert paddle.__spec__ is not None
    assert paddle.__spec__.name == "oarlock.paddle"
    raise ZeroDivisionError


def test_everything_is_as_before_after_the_block() -> None:
    modules, path, meta, environment = set(sys.modules), sys.path[:], sys.meta_path[:], dict(os.environ)
    with pytest.raises(ZeroDivisionError), as_paddle():
        _use_and_fail()
    assert "paddle" not in sys.modules
    assert not {name for name in set(sys.modules) - modules if name.startswith("paddle")}
    assert (sys.path, sys.meta_path, dict(os.environ)) == (path, meta, environment)
    assert not hasattr(torch.Tensor, "astype")


def test_real_paddle_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paddle", torch)
    with pytest.raises(RuntimeError, match="imported already"), as_paddle():
        pass


def test_a_failure_to_begin_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(copy_arrays: bool) -> None:
        raise RuntimeError("not now")

    import oarlock.paddle

    monkeypatch.setattr(oarlock.paddle, "patch_tensor", refuse)
    before = list(sys.meta_path), list(sys.path), dict(os.environ)
    with pytest.raises(RuntimeError, match="not now"), as_paddle():
        pass
    assert (list(sys.meta_path), list(sys.path), dict(os.environ)) == before


def test_missing_program() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        run_program("nowhere.py")
