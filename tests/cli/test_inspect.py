"""`oarlock inspect`: text, JSON and page say the same; many tensors take bounded time."""

import json
import struct
import time
from pathlib import Path

import pytest
import torch

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
