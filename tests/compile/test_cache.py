"""The cache hits in a second process, says why it misses, and survives damage and crowds. Real processes compile."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch import nn

from oarlock.compile import CompileCache
from oarlock.compile.cache import _write

PROGRAM = """
import sys, torch
from torch import nn
from torch._dynamo.utils import counters
from oarlock.compile import CompileCache
model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
with CompileCache(sys.argv[1], model) as cache:
    torch.compile(model)(torch.ones(4, 8)).sum().backward()
print(cache.hit, counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
"""


def run(store: Path, scratch: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(store)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(scratch), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    first = run(tmp_path / "store", tmp_path / "a")
    assert first[0].startswith("compile cache: miss: nothing was compiled into")
    assert first[1].startswith("compile cache: saved")
    assert first[2] == "False 2 0"  # forward and backward
    second = run(tmp_path / "store", tmp_path / "b")
    assert second[0].startswith("compile cache: hit")
    assert second[-1] == "True 0 2"
    assert len(second) == 2  # nothing new to save
    (entry,) = (tmp_path / "store").iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    third = run(tmp_path / "store", tmp_path / "c")
    assert "is damaged (its digest does not match); it is replaced" in third[0]
    assert third[-1] == "False 2 0"


def cache(folder: Path, told: list[str], **more: str) -> CompileCache:
    return CompileCache(folder, nn.Linear(2, 2), more=more, tell=told.append)


def pretend(folder: Path, key: dict[str, str], name: str = "x") -> None:
    folder.mkdir(exist_ok=True)
    _write(folder / f"{name}.compiled", {"key": key, "made": "", "sha256": ""}, b"")


def test_a_miss_names_what_has_changed(tmp_path: Path) -> None:
    told: list[str] = []
    mine = cache(tmp_path, told)
    pretend(tmp_path, {**mine.key, "torch": "2.12.0"})
    assert not mine.load()
    assert told == ["compile cache: miss: torch was 2.12.0, is " + mine.key["torch"]]
    pretend(tmp_path, {**mine.key, "torch": "2.12.0", "device": "x86_64 AVX512"}, "further")
    pretend(tmp_path, {**mine.key, "model": "0"}, "source")
    mine.load()
    assert mine.reason in ("torch was 2.12.0, is " + mine.key["torch"], "the source of the model has changed")


def test_the_model_s_source_and_further_parts_are_in_the_key(tmp_path: Path) -> None:
    class Own(nn.Module):
        pass

    told: list[str] = []
    assert cache(tmp_path, told).path != cache(tmp_path, told, shapes="4x8").path
    assert CompileCache(tmp_path, Own()).key["model"] != CompileCache(tmp_path, nn.Linear(2, 2)).key["model"]


@pytest.mark.parametrize("content", [b"", b"OARLOCKC", b"garbage" * 100, b"OARLOCKC" + b"\xff" * 8 + b"{}"])
def test_foreign_and_cut_files_are_a_miss_with_words(tmp_path: Path, content: bytes) -> None:
    told: list[str] = []
    mine = cache(tmp_path, told)
    mine.path.write_bytes(content)
    assert not mine.load()
    assert "is damaged" in told[0]
    assert "it is replaced" in told[0]
    other = cache(tmp_path, told, shapes="other")
    assert not other.load()  # a foreign file is no neighbour either
    assert "nothing was compiled" in other.reason


def test_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    contents = [bytes([i]) * (1 << 20) for i in range(8)]

    def write(data: bytes) -> None:
        for _ in range(5):
            _write(tmp_path / "entry.compiled", {"key": {}}, data)

    threads = [threading.Thread(target=write, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (entry,) = tmp_path.iterdir()
    assert entry.read_bytes()[-(1 << 20) :] in contents


def test_nothing_is_saved_where_nothing_was_compiled(tmp_path: Path) -> None:
    told: list[str] = []
    with cache(tmp_path / "store", told):
        pass
    assert not (tmp_path / "store").exists()
    with pytest.raises(ZeroDivisionError), cache(tmp_path / "store", told):
        raise ZeroDivisionError


def test_the_key_is_the_same_in_another_process(tmp_path: Path) -> None:
    program = "import json; from oarlock.compile import CompileCache; print(json.dumps(CompileCache('x').key))"
    keys = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True,
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
            ).stdout
        )
        for seed in (1, 2)
    ]  # fmt: skip
    assert keys[0] == keys[1]


def test_a_model_of_a_notebook_cell_has_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import linecache
    import types

    keys = []
    for body in ("x.sin()", "x.cos()"):
        source = f"import torch\nclass Cell(torch.nn.Module):\n    def forward(self, x):\n        return {body}\n"
        cell = types.ModuleType("cell")
        cell.__file__ = str(tmp_path / "no_file" / "cell.py")
        monkeypatch.setitem(sys.modules, "cell", cell)
        monkeypatch.setitem(linecache.cache, cell.__file__, (len(source), None, source.splitlines(True), cell.__file__))
        exec(compile(source, cell.__file__, "exec"), cell.__dict__)
        keys.append(CompileCache(tmp_path / "cache", cell.Cell()).key["model"])
    assert keys[0] != keys[1]
