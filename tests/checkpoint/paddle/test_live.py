"""The whole way against PaddlePaddle itself: what it saves is read here, what is written here it loads, bitwise.

`pytest -m network tests/checkpoint/paddle` installs paddlepaddle from the package index into an environment of its own;
with PADDLE_PYTHON=/path/to/python it uses one that has it.
"""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from oarlock.checkpoint import open_tensors
from oarlock.checkpoint.paddle import load_state_file, save_state_file
from oarlock.cli.main import main

from .test_recorded import FILES, assert_same, expected

HERE = Path(__file__).parent


def call(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    if given := os.environ.get("PADDLE_PYTHON"):
        return given
    place = tmp_path_factory.mktemp("paddle") / "venv"
    venv.create(place, with_pip=True)
    call(place / "bin/pip", "install", "-q", "paddlepaddle==3.3.1", "safetensors")
    return str(place / "bin/python")


@pytest.mark.network
@pytest.mark.timeout(1200)
def test_here_and_back(python: str, tmp_path: Path) -> None:
    saved, written = tmp_path / "saved", tmp_path / "written"
    call(python, HERE / "record.py", saved)
    written.mkdir()
    for name, held in FILES.items():
        assert_same(open_tensors(saved / name).read(), expected(saved, name))
        if not (written / held).exists():
            words = [str(saved / name), str(written / held), "--to", "paddle", "--max-shard-size", "400B"]
            assert main(["convert", *words]) == 0
    for name in ("everything2.pdparams", "everything4.pdparams", "half.pdopt", "half.pdparams"):
        save_state_file(written / name, load_state_file(saved / name))
    save_state_file(written / "model.pdparams", load_state_file(saved / "model2.pdparams"))
    save_state_file(written / "optimizer.pdopt", load_state_file(saved / "optimizer3.pdopt"))
    print(call(python, HERE / "load_back.py", saved, written))
