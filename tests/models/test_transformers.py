"""Every family against transformers: logits, gradients, packed documents, export."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from models.hf_variants import VARIANTS
from oarlock import models, ops
from oarlock.attention import ColumnMask

# float32 sums of 32 to 100 terms through 3 layers; the seen errors are below 2e-5.
TOLERANCE = 1e-4


def tokens(batch: int, seqlen: int) -> torch.Tensor:
    return torch.randint(0, 97, (batch, seqlen), generator=torch.Generator().manual_seed(3))


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Sum over positions, so that the loss of packed documents is the sum of their losses."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def theirs_as_ours(model: torch.nn.Module, folder: Path) -> dict[str, torch.Tensor]:
    """Gradients of a transformers model under our names: written to disk in place of its weights and loaded by us."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.save_pretrained(folder)
    return dict(models.load(folder).named_parameters())


def assert_gradients_match(ours: models.Decoder, theirs: dict[str, torch.Tensor]) -> None:
    """1e-4 of the largest gradient in each tensor: sums over all tokens, so the scale differs between tensors."""
    assert {name for name, _ in ours.named_parameters()} == set(theirs)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        scale = max(1.0, theirs[name].abs().max().item())
        torch.testing.assert_close(
            parameter.grad, theirs[name].detach(), rtol=0, atol=TOLERANCE * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_match(variant, oracle, tmp_path):
    theirs, folder = oracle(variant)
    ours = models.load(folder)
    ids = tokens(2, 24)
    their_logits = theirs(ids).logits
    our_logits = ours.logits(ours(ids))
    torch.testing.assert_close(our_logits, their_logits, rtol=0, atol=TOLERANCE)
    loss_of(their_logits, ids).backward()
    loss_of(our_logits, ids).backward()
    assert_gradients_match(ours, theirs_as_ours(theirs, tmp_path / "gradients"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_documents_match_transformers_run_per_document(variant, oracle, tmp_path):
    theirs, folder = oracle(variant)
    ours = models.load(folder)
    lengths = [9, 1, 14]
    ids = tokens(1, sum(lengths))
    documents = ids.split(lengths, dim=1)
    their_logits = [theirs(document).logits for document in documents]
    position_ids = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0)
    hidden = ours(ids, position_ids=position_ids, mask=ColumnMask.causal_document(lengths))
    torch.testing.assert_close(ours.logits(hidden), torch.cat(their_logits, dim=1), rtol=0, atol=TOLERANCE)

    targets = torch.cat([F.pad(document[:, 1:], (0, 1), value=-100) for document in documents], dim=1)
    ops.linear_cross_entropy(hidden.flatten(0, 1), ours.output_weight, targets.flatten(), reduction="sum").backward()
    torch.stack([loss_of(logits, d) for logits, d in zip(their_logits, documents, strict=True)]).sum().backward()
    assert_gradients_match(ours, theirs_as_ours(theirs, tmp_path / "gradients"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_loads_in_transformers_with_equal_logits(variant, oracle, tmp_path):
    from transformers import AutoModelForCausalLM

    theirs, folder = oracle(variant)
    ours = models.load(folder)
    models.save(ours, tmp_path / "export")
    reloaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "export", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    ids = tokens(2, 24)
    assert torch.equal(reloaded(ids).logits, theirs(ids).logits)
    torch.testing.assert_close(ours.logits(ours(ids)), reloaded(ids).logits, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_load_then_save_keeps_every_bit(variant, oracle, tmp_path):
    _, folder = oracle(variant)
    models.save(models.load(folder), tmp_path / "export")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "export"))
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    # The configuration says the same, in whichever spelling.
    again = models.DecoderConfig.from_hf(json.loads((tmp_path / "export" / "config.json").read_text()))
    assert again == models.read_config(folder)


def test_auxiliary_loss_matches_transformers_where_one_layer_has_experts(oracle):
    theirs, folder = oracle("qwen3_moe-norm-window")  # decoder_sparse_step 2 of 3 layers: one sparse layer
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"output_router_logits": True}))
    ours = models.load(folder)
    ids = tokens(2, 24)
    ours(ids)
    expected = theirs(ids, output_router_logits=True).aux_loss * config["router_aux_loss_coef"]
    torch.testing.assert_close(ours.auxiliary_loss(), expected)
    ours.auxiliary_loss().backward()
    assert ours.layers[1].mlp.gate.weight.grad.abs().sum() > 0
