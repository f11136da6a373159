"""The exported folder: whole, or as it was."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oarlock import models
from oarlock.models import Decoder, DecoderConfig
from oarlock.train.export import export_model


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder(
        DecoderConfig(
            model_type="qwen3",
            vocab_size=16,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    )


@pytest.fixture
def data(tmp_path: Path) -> Any:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return SimpleNamespace(tokenizer_path=folder, bos_id=1, eos_id=[2, 3])


def test_what_is_read_back_is_the_model(tmp_path: Path, model: Decoder, data: Any) -> None:
    target = tmp_path / "hf"
    target.mkdir()
    (target / "of_before.txt").write_text("x", encoding="utf-8")
    export_model(model, data, target)
    read = dict(models.load(target).named_parameters())
    assert all(torch.equal(read[name], p) for name, p in model.named_parameters())
    assert json.loads((target / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": [2, 3]}
    assert (target / "tokenizer.json").read_text() == "{}"
    assert not (target / "of_before.txt").exists()


def test_a_failure_leaves_what_was_there(tmp_path: Path, model: Decoder, data: Any) -> None:
    target = tmp_path / "hf"
    export_model(model, data, target)
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    data.tokenizer_path = tmp_path / "absent"
    with pytest.raises(FileNotFoundError, match="absent"):
        export_model(model, data, target)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "tokenizer"]
