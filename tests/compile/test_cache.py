"""The cache hits in a second process, says why it misses, and survives damage and crowds. Real processes compile."""

import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from oarlock.compile import CompileCache, libraries
from oarlock.compile.cache_entry import read_entry, read_key, write_entry
from oarlock.compile.cache_key import CacheKey

PROGRAM = """
import sys, torch
from torch import nn
from torch._dynamo.utils import counters
from oarlock.compile import CompileCache, libraries
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
    built, found = (sorted(p.name for p in (tmp_path / name).rglob("*.so")) for name in ("a", "b"))
    assert built == found
    assert len(second) == 2  # nothing new to save
    (entry,) = (tmp_path / "store").iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    third = run(tmp_path / "store", tmp_path / "c")
    assert "is damaged (its digest does not match); it is replaced" in third[0]
    assert third[-1] == "False 2 0"


def cache(folder: Path, told: list[str], **more: str) -> CompileCache:
    return CompileCache(folder, nn.Linear(2, 2), more=more, tell=told.append)


def pretend(folder: Path, key: dict[str, str], name: str = "x", **details: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    write_entry(folder / f"{name}.compiled", CacheKey(key, details), b"")


def test_a_miss_names_what_has_changed(tmp_path: Path) -> None:
    told: list[str] = []
    mine = cache(tmp_path, told)
    pretend(tmp_path, {**mine.key, "torch": "2.12.0"})
    assert not mine.load()
    assert told == ["compile cache: miss: torch was 2.12.0, is " + mine.key["torch"]]
    pretend(tmp_path, {**mine.key, "torch": "2.12.0", "device": "x86_64 AVX512"}, "further")
    pretend(tmp_path, {**mine.key, "model": "0"}, "source")
    mine.load()
    assert mine.reason in (
        "torch was 2.12.0, is " + mine.key["torch"],
        f"the source of the model was 0, is {mine.key['model']}",
    )


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


def write_often(folder: Path, number: int) -> None:
    for _ in range(20):
        write_entry(folder / "entry.compiled", CacheKey({"n": str(number)}), bytes([number]) * (1 << 20))


def test_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    processes = [multiprocessing.get_context("spawn").Process(target=write_often, args=(tmp_path, i)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    (entry,) = tmp_path.iterdir()
    _, data = read_entry(entry)
    assert data == bytes([int(read_key(entry).parts["n"])]) * (1 << 20)


def test_a_miss_names_the_options_and_the_files(tmp_path: Path) -> None:
    class Own(nn.Module):
        pass

    mine = CompileCache(tmp_path, Own(), tell=lambda line: None)
    details = {name: dict(texts) for name, texts in mine._key.details.items()}
    option = next(iter(details["config"]))
    value = details["config"][option]
    details["config"][option] = "'other'"
    pretend(tmp_path, {**mine.key, "config": "0"}, "config", **details)
    mine.load()
    assert mine.reason == f"the compiler's configuration has changed ({option} was 'other', is {value})"
    (tmp_path / "config.compiled").unlink()
    details = {name: dict(texts) for name, texts in mine._key.details.items()}
    details["model"][__file__] = "0"
    details["model"]["gone.py"] = "0"
    pretend(tmp_path, {**mine.key, "model": "0"}, "model", **details)
    mine.load()
    assert mine.reason == f"the source of the model has changed ({__file__} was edited, gone.py is gone)"


def test_functions_have_keys_and_other_things_are_refused(tmp_path: Path) -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x

    made = {}
    for body in ("x + 1", "x + 2"):
        exec(f"def f(x):\n    return {body}", made)
        made[body] = CompileCache(tmp_path, made["f"]).key["model"]
    assert made["x + 1"] != made["x + 2"]  # without a file, by their code
    keys = [CompileCache(tmp_path, code).key["model"] for code in (one, lambda x: x, functools.partial(one, 1))]
    assert len({*keys, CompileCache(tmp_path).key["model"]}) == 2  # one file, and none
    with pytest.raises(TypeError, match="source of a module or a function, not of int"):
        CompileCache(tmp_path, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header", [b"[]", b'{"key": 3}', b'{"key": {"a": 1}, "details": {}, "made": "", "sha256": ""}']
)
def test_headers_of_another_form_are_no_neighbours(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "x.compiled").write_bytes(b"OARLOCKC" + len(header).to_bytes(8, "little") + header)
    mine = cache(tmp_path, [])
    assert not mine.load()
    assert mine.reason == f"nothing was compiled into {tmp_path} yet"


def test_libraries_go_back_to_the_inductor_s_folder_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "_folder", lambda: tmp_path / "one")
    built = tmp_path / "one" / "ab" / "cab.so"
    built.parent.mkdir(parents=True)
    built.write_bytes(b"library")
    os.utime(built, (1, 1))  # long ago, but loaded
    monkeypatch.setattr(libraries, "_loaded", lambda folder: [built])
    data = libraries.with_libraries(b"artifacts", 1e9)
    monkeypatch.setattr(libraries, "_folder", lambda: tmp_path / "two")
    assert libraries.put_libraries(data) == b"artifacts"
    assert (tmp_path / "two" / "ab" / "cab.so").read_bytes() == b"library"
    for wrong in (data[:-1], data + b"x", data[:10], data.replace(b"ab/cab.so", b"../cab.so")):
        with pytest.raises(ValueError, match=r"is cut|no library of"):
            libraries.put_libraries(wrong)
    assert not (tmp_path / "cab.so").exists()


def test_content_that_torch_cannot_read_is_a_miss(tmp_path: Path) -> None:
    told: list[str] = []
    mine = cache(tmp_path, told)
    write_entry(mine.path, mine._key, b"whole, but nothing of torch")
    assert not mine.load()
    assert "is damaged" in told[0]


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    (tmp_path / "file").write_text("")
    mine = cache(tmp_path / "file" / "below", told)
    mine.load()
    monkeypatch.setattr("oarlock.compile.cache._num_misses", lambda: 1)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"data", None))
    assert mine.save() is None
    assert told[-1].startswith("compile cache: not saved: ")
    assert str(tmp_path / "file") in told[-1]


def test_an_entry_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cache(tmp_path, [])
    write_entry(mine.path, mine._key, b"")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("oarlock.compile.cache.read_entry", refuse)
    assert not mine.load()
    assert mine.reason == f"{mine.path} cannot be read (Permission denied)"


def test_entries_have_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_entry(tmp_path / "entry", CacheKey({}), b"")
    assert (tmp_path / "entry").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


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
