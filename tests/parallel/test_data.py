"""Two replicas as real processes: gradients, weights and sums against what one process computes from both halves."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from oarlock.digest import digest64
from oarlock.parallel import broadcast_tensors, check_replicas, group_size, reduce_gradients, sum_scalars
from process_group import run_ranks


def parameters_with_gradients(rank: int) -> list[Tensor]:
    """Mixed dtypes and strides; gradients that only some ranks have, or none."""
    generator = torch.Generator().manual_seed(rank)
    shapes: list[tuple[int, ...]] = [(7, 3), (), (0, 4), (100,), (5, 6), (3,), (2,), (4,)]
    dtypes = [torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float32, torch.float64, torch.float32]
    parameters = [nn.Parameter(torch.zeros(s, dtype=d)) for s, d in zip(shapes, [*dtypes, torch.float32], strict=True)]
    for index, p in enumerate(parameters):
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        if index == 4:
            p.grad = torch.randn(6, 5, generator=generator).t()
    if rank == 0:
        parameters[5].grad = None
    parameters[6].grad = None
    parameters[7].requires_grad_(False)
    return parameters


def reduce_in_every_way() -> dict[str, Any]:
    rank = dist.get_rank()
    results: dict[str, Any] = {}
    for mean in (True, False):
        for bucket_bytes in (1, 100, 1 << 20):
            parameters = parameters_with_gradients(rank)
            reduce_gradients(parameters, mean=mean, bucket_bytes=bucket_bytes)
            grads = [None if p.grad is None else p.grad.double().tolist() for p in parameters]
            results[f"{mean} {bucket_bytes}"] = grads
    sparse = nn.Parameter(torch.zeros(2, 2))
    sparse.grad = torch.eye(2).to_sparse()
    try:
        reduce_gradients([sparse])
    except TypeError as error:
        results["sparse"] = str(error)
    return results


def train_together(num_ranks: int, rank: int) -> tuple[list[float], int]:
    """Five steps of AdamW; each rank has its rows of the batch, the loss is divided by the rows of all."""
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    if rank:
        model[0].weight.data.zero_()  # what the broadcast is for
    broadcast_tensors(model.parameters())
    check_replicas(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
        optimizer.zero_grad()
        loss = (model(x[rank::num_ranks]) - y[rank::num_ranks]).square().sum() / 8
        loss.backward()
        reduce_gradients(model.parameters(), mean=False)
        optimizer.step()
        losses += sum_scalars([loss.item()])
    check_replicas(model.named_parameters())
    return losses, sum(digest64(p) for p in model.parameters()) % 2**53


def broadcast_every_dtype() -> list[Any]:
    rank = dist.get_rank()
    tensors = [
        torch.full((3, 2), float(rank)),
        torch.tensor(rank),
        torch.tensor([rank == 1, rank == 0]),
        torch.full((5,), float(rank)).to(torch.float8_e4m3fn),
        torch.full((3,), float(rank), dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.full((4, 3), float(rank)).t(),
        torch.full((6,), rank + 0.5)[::2],
    ]
    broadcast_tensors(tensors, source=1)
    return [[tensor.double().tolist(), tensor.is_contiguous()] for tensor in tensors]


def compare_replicas() -> list[str]:
    rank = dist.get_rank()
    messages = []

    def attempt(tensors: dict[str, Tensor]) -> None:
        try:
            check_replicas(tensors.items())
        except RuntimeError as error:
            messages.append(str(error))
        else:
            messages.append("same")

    same = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    attempt(same)
    attempt({**same, "b": torch.tensor([[0.0, -0.0 if rank else 0.0], [0.0, 0.0]])})
    attempt({f"layers.{i}": torch.full((2,), float(i * rank)) for i in range(9)})
    attempt({**same, f"own{rank}": torch.ones(1)})
    attempt({"a": torch.ones(3)} if rank else same)
    attempt({})
    return messages


def work() -> dict[str, Any]:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    one = dist.new_group([0]), dist.new_group([1])
    assert (group_size(), group_size(one[rank])) == (2, 1)
    results = {
        "reduce": reduce_in_every_way(),
        "train": train_together(2, rank),
        "broadcast": broadcast_every_dtype(),
        "compare": compare_replicas(),
        "sums": [sum_scalars([rank + 0.5, 2**53 * (1 - rank), rank]), sum_scalars([rank], one[rank])],
    }
    dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run_ranks(2, work)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_gradients(two: list[dict[str, Any]], mean: bool, bucket_bytes: int) -> None:
    """Adding two numbers has one order, so the result is exact in the gradient's dtype."""
    ours, theirs = (result["reduce"][f"{mean} {bucket_bytes}"] for result in two)
    left, right = parameters_with_gradients(0), parameters_with_gradients(1)
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if index == 6:
            assert ours[index] is None, "no rank had a gradient"
            assert theirs[index] is None
            continue
        if index == 7:
            assert ours[index] == a.grad.double().tolist(), "requires no gradient, left alone"
            continue
        total = (torch.zeros_like(a) if a.grad is None else a.grad) + b.grad
        expected = total / 2 if mean else total
        assert ours[index] == expected.double().tolist(), index
        assert theirs[index] == ours[index], index


def test_sparse_gradients_are_refused(two: list[dict[str, Any]]) -> None:
    assert all("sparse gradient (shape (2, 2))" in result["reduce"]["sparse"] for result in two)


def test_training_equals_one_process_with_the_whole_batch(two: list[dict[str, Any]]) -> None:
    """1e-5: float32 sums over the rows in another order, five steps long."""
    losses, _ = train_together(1, 0)
    assert two[0]["train"] == two[1]["train"], "replicas stay equal bit for bit"
    assert two[0]["train"][0] == pytest.approx(losses, rel=1e-5)


def test_broadcast(two: list[dict[str, Any]]) -> None:
    expected = [
        [[[1.0, 1.0]] * 3, True],
        [1.0, True],
        [[1.0, 0.0], True],
        [[1.0] * 5, True],
        [[1.0] * 3, True],
        [[], True],
        [[[1.0] * 4] * 3, False],
        [[1.5] * 3, False],
    ]
    assert [result["broadcast"] for result in two] == [expected, expected]


def test_comparing_replicas(two: list[dict[str, Any]]) -> None:
    expected = [
        "same",
        "1 of 2 tensors on ranks [1] differ from rank 0's: b",
        "8 of 9 tensors on ranks [1] differ from rank 0's: layers.1, layers.2, layers.3, layers.4, layers.5, ...",
        "ranks [1] have tensors of other names than rank 0; this rank has 3 tensors",
    ]
    for rank, result in enumerate(two):
        assert result["compare"][:4] == expected
        assert result["compare"][4].endswith(f"this rank has {2 - rank} tensors")
        assert result["compare"][5] == "same"


def test_sums_are_in_float64(two: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(two):
        assert result["sums"] == [[2.0, float(2**53), 1.0], [float(rank)]]


def test_alone() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    reduce_gradients([parameter])
    broadcast_tensors([parameter])
    check_replicas([("p", parameter)])
    assert group_size() == 1
    assert parameter.grad.tolist() == [1.0, 1.0]
    assert sum_scalars([1, 2]) == [1.0, 2.0]
