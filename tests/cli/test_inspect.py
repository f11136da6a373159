"""`oarlock inspect`: text, JSON and page say the same; many tensors take bounded time."""

import json
import re
import struct
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from oarlock.checkpoint import save_checkpoint
from oarlock.cli.main import main


def test_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.randn(8, 4)
    groups = {"model": {"e": weight, "head": weight, "l.0.w": torch.ones(2), "l.1.w": torch.ones(2)}}
    path = save_checkpoint(tmp_path, 3, tensors=groups)
    assert main(["inspect", str(path), "--verify", "--json", "--html", str(tmp_path / "page.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checksums"] == "verified"
    assert found["files"] == {"model.safetensors": 144}
    assert {t["name"]: t["same_as"] for t in found["tensors"]}["head"] == "e"
    assert found["tree"]["model"] == 144
    assert found["tree"]["model.l"] == 16
    assert "l.*.w" in (tmp_path / "page.html").read_text()
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "not verified" in shown
    assert "same as" in shown


def test_1e5_tensors_in_bounded_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = {f"t\x1b.{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(100_000)}
    text = json.dumps(entries).encode()
    path = tmp_path / "many.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(100_000))
    begun = time.process_time()
    assert main(["inspect", str(path)]) == 0
    assert time.process_time() - begun < 30  # it takes 1 to 2 s; a quadratic step would take minutes
    out = capsys.readouterr().out
    assert "100000" in out
    assert "same as" not in out, "a column of nothing takes room from the names"
    assert "\x1b" not in out
    assert main(["inspect", str(path), "--verify"]) == 2
    assert "no digests" in capsys.readouterr().err


def rows_of(shown: str) -> dict[str, list[str]]:
    """Name -> the other cells of the first table."""
    lines = [line.split() for line in shown.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:1] == ["tensor"])
    stop = next(i for i, line in enumerate(lines) if line[:1] == ["file"])
    return {line[1]: line[2:] for line in lines[start + 1 : stop]}


def test_a_row_of_one_tensor_has_its_whole_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"0.weight": torch.ones(8, 4), "2.weight": torch.ones(3, 8), "0.bias": torch.ones(8)}
    save_file(tensors, tmp_path / "net.safetensors")
    page = tmp_path / "page.html"
    assert main(["inspect", str(tmp_path / "net.safetensors"), "--html", str(page)]) == 0
    assert set(rows_of(capsys.readouterr().out)) == set(tensors)
    assert all(f"<td>model: {name}</td>" in page.read_text() for name in tensors)
    assert "same as" not in page.read_text()


def test_a_star_stands_only_for_numbers_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {f"layers.{i}.fc1.weight": torch.ones(2, 3) for i in range(3)}
    tensors |= {f"layers.{i}.fc2.weight": torch.ones(3, 2) for i in range(3)}
    tensors |= {f"experts.{i}.w{j}": torch.ones(5) for i in range(2) for j in (1, 3)}
    save_file(tensors, tmp_path / "net.safetensors")
    assert main(["inspect", str(tmp_path / "net.safetensors")]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert {name: cells[-3] for name, cells in rows.items()} == {
        "layers.*.fc1.weight": "3",
        "layers.*.fc2.weight": "3",
        "experts.*.w*": "4",
    }


def test_ties_have_whole_names_and_what_is_left_out_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.randn(8, 4)
    group = {"embed.0": weight, "head.7": weight} | {f"{'a' * (i + 1)}.x": torch.ones(2) for i in range(250)}
    path = save_checkpoint(tmp_path, 3, tensors={"model": group})
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"head\.7 .* embed\.0 ", shown)
    assert "... and 52 more (--json has all)" in shown  # of 252 tensors
    assert len(re.findall(r"\.\.\. and \d+ more", shown)) == 2  # of the sizes below a name, too
