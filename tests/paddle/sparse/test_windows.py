"""Sparse convolutions and pools against dense ones at the places that a stored one reaches."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oarlock.paddle as paddle
from oarlock.paddle import sparse
from oarlock.paddle.sparse.nn import functional as S


def volume(*shape: int) -> Tensor:
    """[N, ...spatial, C] with few stored places, in float64."""
    torch.manual_seed(0)
    dense = torch.randn(*shape, dtype=torch.float64)
    return (dense * (torch.rand(shape[:-1]) < 0.2)[..., None]).to_sparse(len(shape) - 1)


def dense_conv(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    """A dense convolution in the sparse layouts."""
    dims = x.ndim - 2
    function = F.conv3d if dims == 3 else F.conv2d
    first = x.to_dense().movedim(-1, 1) if x.layout != torch.strided else x.movedim(-1, 1)
    return function(first, weight.movedim((-1, -2), (0, 1)), **options).movedim(1, -1)


CASES: list[tuple[int, Any, Any, Any, Any]] = [
    (3, 3, 1, 0, 1),
    (3, 3, 2, 1, 1),
    (3, (1, 2, 3), (1, 2, 1), (0, 1, 2), (1, 1, 2)),
    (3, 2, 3, 2, 1),
    (2, 3, 1, "SAME", 1),
    (2, (3, 2), 2, 1, 2),
]


@pytest.mark.parametrize(("dims", "kernel", "stride", "padding", "dilation"), CASES)
def test_a_convolution(dims: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    x = volume(2, *(5, 4, 6)[:dims], 2)
    sizes = (kernel,) * dims if isinstance(kernel, int) else kernel
    weight, bias = torch.randn(*sizes, 2, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    convolve = S.conv3d if dims == 3 else S.conv2d
    made = convolve(x, weight, bias, stride, padding, dilation)
    options = {"stride": stride, "padding": "same" if padding == "SAME" else padding, "dilation": dilation}
    places = (x.to_dense() != 0).any(-1, keepdim=True).double()
    reached = dense_conv(places, torch.ones(*sizes, 1, 1, dtype=torch.float64), **options) > 0
    expected = (dense_conv(x, weight, **options) + bias) * reached
    torch.testing.assert_close(made.to_dense(), expected)
    assert made.is_coalesced()
    assert made._nnz() == reached.sum()


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (3, 2), ((1, 3, 5), 1)])
def test_a_submanifold_convolution(kernel: Any, dilation: int) -> None:
    x = volume(2, 5, 4, 6, 2)
    sizes = (kernel,) * 3 if isinstance(kernel, int) else kernel
    weight, bias = torch.randn(*sizes, 2, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    made = S.subm_conv3d(x, weight, bias, dilation=dilation, key="first")
    dense = dense_conv(x, weight, padding=[dilation * (k // 2) for k in sizes], dilation=dilation) + bias
    torch.testing.assert_close(made.to_dense(), dense * (x.to_dense() != 0).any(-1, keepdim=True))
    assert torch.equal(made.indices(), x.indices())


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_pool_looks_at_stored_values_only(ceil_mode: bool) -> None:
    x = volume(2, 5, 4, 6, 2)
    made = S.max_pool3d(x, [2, 3, 2], [2, 1, 2], [1, 1, 0], ceil_mode)
    stored = (x.to_dense() != 0).any(-1, keepdim=True)
    first = x.to_dense().masked_fill(~stored, -torch.inf).movedim(-1, 1)
    dense = F.max_pool3d(first, [2, 3, 2], [2, 1, 2], [1, 1, 0], ceil_mode=ceil_mode).movedim(1, -1)
    assert (made.to_dense() < 0).any(), "a zero that is not stored is not larger"
    torch.testing.assert_close(made.to_dense(), torch.where(dense.isinf(), 0.0, dense))


def test_gradients() -> None:
    x = volume(1, 4, 3, 4, 2)
    values = x.values().clone().requires_grad_()
    weight = torch.randn(2, 3, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def stored(values: Tensor) -> Tensor:
        return sparse.sparse_coo_tensor(x.indices(), values, list(x.shape))

    assert torch.autograd.gradcheck(lambda v, w, b: S.conv3d(stored(v), w, b, 2, 1).values(), (values, weight, bias))
    assert torch.autograd.gradcheck(lambda v, w, b: S.subm_conv3d(stored(v), w, b).values(), (values, weight, bias))
    assert torch.autograd.gradcheck(lambda v: S.max_pool3d(stored(v), 2, 1).values(), values)


def test_a_network_learns() -> None:
    torch.manual_seed(0)
    x = volume(2, 6, 6, 6, 2).float()
    net = paddle.nn.Sequential(
        sparse.nn.SubmConv3D(2, 4, 3, key="a"),
        sparse.nn.BatchNorm(4),
        sparse.nn.ReLU(),
        sparse.nn.Conv3D(4, 3, 2, 2),
        sparse.nn.MaxPool3D(2),
    )
    optimizer = paddle.optimizer.Adam(0.05, parameters=net.parameters())
    losses = []
    for _ in range(15):
        loss = (net(x).values() - 1.0).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3


def test_normalisation_counts_stored_values_only() -> None:
    x = volume(2, 4, 4, 4, 3)
    layer = sparse.nn.BatchNorm(3, 0.5).to(dtype="float64")
    made = layer(x).values()
    torch.testing.assert_close(made.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(layer._mean, x.values().mean(0) / 2)


def test_sync_norms_keep_what_was_learned() -> None:
    net = paddle.nn.Sequential(sparse.nn.BatchNorm(2), paddle.nn.Sequential(paddle.nn.BatchNorm2D(3)))
    weight = net[0].weight
    made = sparse.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert isinstance(made[0], sparse.nn.SyncBatchNorm)
    assert made[0].weight is weight
    assert isinstance(made[1][0], paddle.nn.SyncBatchNorm)
    assert not isinstance(made[1][0], sparse.nn.SyncBatchNorm)
    x = volume(1, 4, 4, 4, 2).float()
    torch.testing.assert_close(made[0](x).values(), sparse.nn.BatchNorm(2)(x).values())


def test_refusals() -> None:
    x, weight = volume(1, 4, 4, 4, 2), torch.randn(3, 3, 3, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="one group"):
        S.conv3d(x, weight, groups=2)
    with pytest.raises(ValueError, match="data_format must be 'NDHWC'"):
        S.conv3d(x, weight, data_format="NCDHW")
    with pytest.raises(ValueError, match="dense channels"):
        S.conv3d(x.to_dense().to_sparse(), weight)
    with pytest.raises(ValueError, match="a weight"):
        S.conv3d(x, weight[..., :1, :])
    with pytest.raises(ValueError, match="the stride 1"):
        S.subm_conv3d(x, weight, stride=2)
    with pytest.raises(ValueError, match="backend"):
        sparse.nn.SubmConv3D(2, 3, 3, backend="other")
    with pytest.raises(ValueError, match="no mask"):
        sparse.nn.MaxPool3D(2, return_mask=True)
