"""Sparse tensors against dense ones: what Paddle has on GPUs only, and what 3.3.1 does otherwise."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import oarlock.paddle as paddle
from oarlock.paddle import sparse

# What torch says once a process of its own sparse functions.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


def some(*shape: int, seed: int = 0) -> Tensor:
    """A dense tensor, a third of it zeros."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made * (torch.arange(made.numel()).reshape(shape) % 3 > 0)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {"coo": lambda x: x.to_sparse(), "csr": lambda x: x.to_sparse_csr()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products(layout: str) -> None:
    to = LAYOUTS[layout]
    x, y, v = some(3, 4), torch.randn(4, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(sparse.matmul(to(x), y), x @ y)
    torch.testing.assert_close(sparse.mv(to(x), v), x @ v)
    both = sparse.matmul(to(x), to(some(4, 2)))
    assert both.layout == to(x).layout
    torch.testing.assert_close(both.to_dense(), x @ some(4, 2))
    first = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(sparse.addmm(first, to(x), y, 2.0, 3.0), 2 * first + 3 * (x @ y))
    made = sparse.addmm(to(some(3, 2, seed=1)), to(x), to(some(4, 2)), 2.0, 3.0)
    torch.testing.assert_close(made.to_dense(), 2 * some(3, 2, seed=1) + 3 * (x @ some(4, 2)))
    masked = sparse.masked_matmul(first, y.T.contiguous(), to(some(3, 4, seed=2)))
    torch.testing.assert_close(masked.to_dense(), (first @ y.T) * (some(3, 4, seed=2) != 0))


def test_products_of_a_batch() -> None:
    x, y = some(2, 3, 4), torch.randn(2, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(sparse.matmul(x.to_sparse(), y), x @ y)
    torch.testing.assert_close(sparse.matmul(x.to_sparse_csr(), y), x @ y)
    mask = some(2, 3, 5)
    made = sparse.masked_matmul(x, y, mask.to_sparse())
    torch.testing.assert_close(made.to_dense(), (x @ y) * (mask != 0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: sparse.sin(x).to_dense(),
        lambda x: sparse.square(x).to_dense(),
        lambda x: sparse.add(x, sparse.tanh(x)).to_dense(),
        lambda x: sparse.subtract(x, sparse.sin(x)).to_dense(),
        lambda x: sparse.multiply(x, x).to_dense(),
        lambda x: sparse.transpose(x, [1, 0]).to_dense(),
        lambda x: sparse.reshape(x, [2, 6]).to_dense(),
        lambda x: sparse.slice(x, [0, 1], [1, 1], [3, 4]).to_dense(),
        lambda x: sparse.sum(x, -1).to_dense(),
        lambda x: sparse.nn.functional.softmax(x).to_dense(),
        lambda x: sparse.nn.functional.leaky_relu(x, 0.3).to_dense(),
        lambda x: sparse.matmul(x, some(4, 2, seed=3) + 1),
        lambda x: sparse.mv(x, torch.arange(4.0, dtype=torch.float64)),
    ],
)
def test_gradients(layout: str, function: Callable[[Tensor], Tensor]) -> None:
    """The stored places move, the others do not: finite differences of the stored values alone."""
    x = some(3, 4)
    where = x != 0

    def of_stored(values: Tensor) -> Tensor:
        return function(LAYOUTS[layout](torch.zeros_like(x).masked_scatter(where, values)))

    assert torch.autograd.gradcheck(of_stored, x[where].clone().requires_grad_())


def test_gradients_of_masks() -> None:
    mask = some(3, 4)
    for to in LAYOUTS.values():
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, to=to: sparse.mask_as(x, to(mask)).to_dense(), x)
        y = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, y, to=to: sparse.masked_matmul(x, y, to(mask)).to_dense(), (x, y))


def test_places_in_any_order_have_gradients_and_places_given_twice_do_not() -> None:
    values = torch.randn(3, dtype=torch.float64, requires_grad=True)
    made = sparse.sparse_coo_tensor([[2, 0, 1], [1, 2, 0]], values, [3, 3])
    assert not made.is_coalesced()
    (slope,) = torch.autograd.grad(sparse.sin(made).to_dense().sum(), values)
    torch.testing.assert_close(slope, values.cos())
    twice = sparse.sparse_coo_tensor([[0, 0, 1], [1, 1, 2]], values, [2, 3])
    assert twice.nnz() == 3
    assert twice.to_dense()[0, 1] == values[:2].sum()
    with pytest.raises(RuntimeError, match="several values at one place"):
        sparse.sin(twice).values().sum().backward()


def test_sums_over_several_dimensions() -> None:
    x = some(2, 3, 4)
    for axis in ([0, 2], [0, 1], 1, None, [0, 1, 2]):
        made = sparse.sum(x.to_sparse(), axis).to_dense()
        torch.testing.assert_close(made.reshape(-1), torch.as_tensor(x.sum(axis)).reshape(-1))
        kept = sparse.sum(x.to_sparse(), axis, keepdim=True).to_dense()
        torch.testing.assert_close(kept, x.sum(axis if axis is not None else [0, 1, 2], keepdim=True))


def test_dense_dimensions() -> None:
    x = some(2, 3, 4)
    stored = x.to_sparse(2)
    torch.testing.assert_close(sparse.transpose(stored, [1, 0, 2]).to_dense(), x.permute(1, 0, 2))
    torch.testing.assert_close(sparse.slice(stored, [0, 2], [0, 1], [1, 3]).to_dense(), x[:1, :, 1:3])
    torch.testing.assert_close(sparse.sum(stored, [1, 2]).to_dense(), x.sum([1, 2]))
    with pytest.raises(ValueError, match="sparse dimension"):
        sparse.transpose(stored, [2, 0, 1])
    with pytest.raises(ValueError, match="cannot be reshaped"):
        sparse.reshape(stored, [3, 8])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_over_stored_pairs(layout: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    seen = (torch.arange(36).reshape(6, 6) % 3 > 0).expand(4, 6, 6)
    padding = torch.ones(2, 6)
    padding[1, 4:] = 0
    pairs = torch.ones(6, 6).tril(2)
    made = sparse.nn.functional.attention(q, k, v, LAYOUTS[layout](seen.double()), padding, pairs)
    allowed = seen.reshape(2, 2, 6, 6) & (padding[:, None, None] != 0) & (pairs != 0)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed)
    torch.testing.assert_close(made, expected)
    for found, other in zip(
        torch.autograd.grad(made.square().sum(), (q, k, v)),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(found, other)


def test_a_row_of_attention_that_sees_nothing_is_zero() -> None:
    q = torch.randn(1, 1, 2, 3)
    mask = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]]).to_sparse()
    made = sparse.nn.functional.attention(q, q, q, mask, torch.zeros(1, 2))
    assert (made == 0).all()


def test_low_rank() -> None:
    torch.manual_seed(0)
    x = some(6, 2) @ some(2, 5)
    for to in LAYOUTS.values():
        u, s, v = sparse.pca_lowrank(to(x), 2, center=False)
        torch.testing.assert_close(u @ torch.diag(s) @ v.T, x)
    u, s, v = sparse.pca_lowrank(x.to_sparse(), 2)
    centred = x - x.mean(0)
    torch.testing.assert_close(s, torch.linalg.svdvals(centred)[:2])


def test_what_a_tensor_says_of_its_layout() -> None:
    x = some(3, 4)
    assert [bool(t.is_sparse) for t in (x, x.to_sparse(), x.to_sparse_csr())] == [False, True, False], "torch's values"
    assert [t.is_sparse() for t in (x, x.to_sparse(), x.to_sparse_csr())] == [False, True, True], "Paddle's answers"
    assert x.to_sparse_csr().is_sparse_csr()
    assert not x.is_sparse_csr()
    with paddle.strict():
        y = paddle.to_tensor([[0.0, 1.0]])
        assert y.to_sparse_coo(2).is_sparse()
        assert not y.is_sparse()
        assert sparse.sin(y.to_sparse_coo(2)).shape == [1, 2]
        assert sparse.nn.BatchNorm(1)(paddle.ones([1, 2, 2, 2, 1]).to_sparse_coo(4)).values().shape == [8, 1]


def test_a_graph_takes_torchs_value() -> None:
    """Torch's own code asks for it, its optimizers for one."""
    doubled = torch.compile(lambda x: x if x.is_sparse or x.is_sparse_csr else 2 * x, backend="eager", fullgraph=True)
    assert doubled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_tensors_without_entries() -> None:
    empty = torch.zeros(3, 4)
    for to in LAYOUTS.values():
        x = to(empty)
        for made in (sparse.sin(x), sparse.add(x, x), sparse.transpose(x, [1, 0]), sparse.nn.functional.softmax(x)):
            assert made.nnz() == 0
        assert sparse.sum(x, -1).to_dense().sum() == 0
        assert sparse.matmul(x, torch.ones(4, 2)).tolist() == [[0.0, 0.0]] * 3
    assert sparse.sum(sparse.isnan(some(3, 4).to_sparse())).to_dense().tolist() == [0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: sparse.sin(torch.ones(2)), "not a dense tensor"),
        (lambda: sparse.add(some(2, 3).to_sparse(), some(2, 3)), "not a dense tensor"),
        (lambda: sparse.add(some(2, 3).to_sparse(), some(2, 3).to_sparse_csr()), "one shape and layout"),
        (lambda: sparse.add(some(2, 3).to_sparse(), some(3, 2).to_sparse()), "one shape and layout"),
        (lambda: sparse.mask_as(some(2, 3), some(3, 2).to_sparse()), "must have one shape"),
        (lambda: sparse.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0)), "needs a shape"),
        (lambda: sparse.sparse_csr_tensor([0, 0], torch.zeros(0, dtype=torch.int64), torch.zeros(0)), "needs a shape"),
        (lambda: sparse.sparse_coo_tensor([[0, 3]], [1.0, 2.0], [3]), "outside the shape"),
        (lambda: sparse.sparse_coo_tensor([[0, 1]], [1.0], [3]), "were expected"),
        (lambda: sparse.sparse_coo_tensor([[0, 1]], [1.0, 2.0], [3, 3]), "shape of 1 dimensions"),
        (lambda: sparse.sparse_csr_tensor([0, 1, 2], [0, 5], [1.0, 2.0], [2, 3]), "col_indices"),
        (lambda: sparse.sparse_csr_tensor([0, 1, 2, 0, 0, 1], [0, 1, 0], [1.0, 2.0, 3.0], [2, 2, 2]), "equally many"),
        (lambda: sparse.sum(some(2, 3).to_sparse_csr(), 0), "last dimension"),
        (lambda: sparse.nn.functional.softmax(some(2, 3).to_sparse_csr(), 0), "last dimension"),
    ],
)
def test_refusals(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        wrong()


def test_a_batch_of_rows() -> None:
    starts, columns = [0, 1, 2, 0, 2, 2], [0, 1, 0, 1]
    made = sparse.sparse_csr_tensor(starts, columns, [1.0, 2.0, 3.0, 4.0], [2, 2, 2])
    assert made.to_dense().tolist() == [[[1.0, 0.0], [0.0, 2.0]], [[3.0, 4.0], [0.0, 0.0]]]
    made = sparse.nn.functional.softmax(made)
    assert made.to_dense()[1, 0].sum().item() == pytest.approx(1.0)
