"""Layers refuse what Paddle refuses, where torch would compute something."""

from typing import Any

import pytest
import torch

from oarlock.paddle import nn


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1D(3), (2, 3, 4, 4)),
        (nn.BatchNorm2D(3), (2, 3)),
        (nn.BatchNorm2D(3), (2, 3, 4, 4, 4)),
        (nn.BatchNorm3D(3), (2, 3, 4)),
        (nn.InstanceNorm1D(3), (2, 3, 4, 4)),
        (nn.InstanceNorm2D(3), (2, 3, 4)),
        (nn.InstanceNorm3D(3), (2, 3, 4, 4)),
    ],
)
def test_norms_have_their_number_of_dimensions(layer: Any, shape: tuple[int, ...]) -> None:
    """The message has the shape; the statistics stay as they were."""
    with pytest.raises(ValueError, match="dimensions, got"):
        layer(torch.randn(shape))
    assert all(bool((value == value[0]).all()) for value in layer.state_dict().values())


@pytest.mark.parametrize(
    "kind", ["Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"]
)
def test_convolutions_have_two_layouts(kind: str) -> None:
    """Channels first or last, of their own number of dimensions."""
    number = {"1": ("NCL", "NLC"), "2": ("NCHW", "NHWC"), "3": ("NCDHW", "NDHWC")}[kind[4]]
    for layout in number:
        assert getattr(nn, kind)(2, 2, 1, data_format=layout).data_format == layout
    with pytest.raises(ValueError, match=number[1]):
        getattr(nn, kind)(2, 2, 1, data_format="NC")


def test_reductions_are_checked_when_a_loss_is_made() -> None:
    """And not only in the first step of a training."""
    for kind in ("MSELoss", "BCELoss", "NLLLoss", "TripletMarginLoss", "CrossEntropyLoss", "GaussianNLLLoss"):
        with pytest.raises(ValueError, match=f"{kind}: reduction = 'average'"):
            getattr(nn, kind)(reduction="average")
    nn.KLDivLoss("batchmean")


def test_a_list_of_layers_has_an_end() -> None:
    """`insert` goes up to the end, not beyond."""
    layers = nn.LayerList([nn.ReLU()])
    layers.insert(1, nn.Tanh())
    with pytest.raises(IndexError, match="out of range for 2"):
        layers.insert(3, nn.ReLU())
    with pytest.raises(ValueError, match="NHWC"):
        nn.GroupNorm(2, 4, data_format="HWC")
