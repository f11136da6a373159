"""Writing state: whole or not at all, and refused before anything is written."""

from pathlib import Path

import pytest
import torch

import oarlock.paddle as paddle


@pytest.mark.parametrize("value", [{"a": {"b": torch.ones(1)}}, {"a": 3}, [torch.ones(1)]])
def test_safetensors_refuses_other_values_and_keeps_what_was_there(tmp_path: Path, value: object) -> None:
    path = tmp_path / "w.safetensors"
    paddle.save({"w": torch.arange(3)}, path, safetensors=True)
    with pytest.raises(TypeError, match="writes a dict of tensors"):
        paddle.save(value, path, safetensors=True)
    assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]
    assert paddle.load(path, safetensors=True)["w"].tolist() == [0, 1, 2]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    paddle.save({"w": torch.arange(3)}, path, safetensors=True)

    def half(tensors: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    with pytest.raises(OSError, match="no space"):
        paddle.save({"w": torch.zeros(3)}, path, safetensors=True)
    assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]
    assert paddle.load(path, safetensors=True)["w"].tolist() == [0, 1, 2]


def test_tied_tensors_are_written_each(tmp_path: Path) -> None:
    x = torch.arange(4.0).reshape(2, 2)
    paddle.save({"a": x, "b": x.t()}, tmp_path / "w", safetensors=True)
    assert paddle.load(tmp_path / "w", safetensors=True)["b"].tolist() == x.t().tolist()
