"""Small random models of transformers, saved to disk: the oracle of every family."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.hf_variants import SIZES, VARIANTS


@pytest.fixture(autouse=True)
def _quiet_transformers() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture
def oracle(tmp_path: Path) -> Callable[[str], tuple[torch.nn.Module, Path]]:
    """Makes a random transformers model of a variant and saves it; returns it with its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    def make(variant: str) -> tuple[torch.nn.Module, Path]:
        model_type, fields = VARIANTS[variant]
        torch.manual_seed(7)
        config = AutoConfig.for_model(model_type, **{**SIZES, **fields})
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():  # larger than a fresh model, so that norms, biases and routing matter
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if "inv_freq" in name:
                    continue
                tensor.normal_(1.0 if "norm" in name else 0.0, 0.2)
        model.save_pretrained(tmp_path / variant)
        return model, tmp_path / variant

    return make
