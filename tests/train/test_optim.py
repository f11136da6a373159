"""Muon against its definition, and the choice of what goes to which optimizer."""

import pytest
import torch
from torch import nn

from oarlock.train.config import OptimizerConfig
from oarlock.train.optim import Muon, build_optimizers, orthogonalise


@pytest.mark.parametrize("shape", [(24, 24), (40, 16), (16, 40), (3, 12, 20)])
def test_orthogonalise_keeps_the_singular_vectors_and_flattens_the_values(shape: tuple[int, ...]) -> None:
    g = torch.randn(shape, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    core = u.mT @ orthogonalise(g) @ vh.mT
    values = torch.diagonal(core, dim1=-2, dim2=-1)
    # An odd matrix polynomial acts on singular values alone: the rotated result is diagonal up to rounding.
    torch.testing.assert_close(core, torch.diag_embed(values), atol=1e-9, rtol=0)
    # The quintic maps (0.02, 1] into about [0.7, 1.2]; random matrices have few values below that.
    assert ((values > 0.6) & (values < 1.25)).double().mean() > 0.9


def test_muon_matches_torch_muon() -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 24 * 16).view(24, 16).clone()) for _ in range(2))
    mine = Muon([ours], lr=0.1, momentum=0.9, weight_decay=0.1)
    reference = torch.optim.Muon(
        [theirs], lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, adjust_lr_fn="original"
    )
    for _ in range(4):
        ours.grad = torch.randn(24, 16)
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
    # torch iterates in bf16: three decimal digits of an update of norm about one, times lr.
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=0)
    assert (ours - torch.linspace(-1, 1, 24 * 16).view(24, 16)).abs().max() > 0.05


def test_expert_stacks_are_batches_of_matrices() -> None:
    stack = nn.Parameter(torch.zeros(3, 8, 6))
    singles = [nn.Parameter(torch.zeros(8, 6)) for _ in range(3)]
    stack.grad = torch.randn(3, 8, 6)
    for single, gradient in zip(singles, stack.grad, strict=True):
        single.grad = gradient.clone()
    Muon([stack]).step()
    Muon(singles).step()
    torch.testing.assert_close(stack.data, torch.stack([s.data for s in singles]))


def test_muon_refuses_vectors() -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        Muon([nn.Parameter(torch.zeros(4))])


def test_embeddings_norms_and_biases_go_to_adamw() -> None:
    model = nn.ModuleDict(
        {
            "embed_tokens": nn.Embedding(5, 4),
            "proj": nn.Linear(4, 4),
            "norm": nn.LayerNorm(4),
            "lm_head": nn.Linear(4, 5),
        }
    )
    muon = build_optimizers(model, OptimizerConfig(name="muon"))["muon"]
    assert [p is model["proj"].weight for g in muon.param_groups for p in g["params"]] == [True]
    adamw = build_optimizers(model, OptimizerConfig(name="adamw", weight_decay=0.1))["adamw"]
    decayed = [p for g in adamw.param_groups if g["weight_decay"] for p in g["params"]]
    assert [p is model["proj"].weight for p in decayed] == [True]
    assert sum(len(g["params"]) for g in adamw.param_groups) == len(list(model.parameters()))
