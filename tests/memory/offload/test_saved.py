"""Whatever autograd saves, and however a graph is used or dropped: gradients as without hooks, one copy, no leak."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from oarlock.memory.offload import FileTier, HostTier, Tier, checkpoint
from oarlock.memory.offload.session import Schedule, Session

CPU = torch.device("cpu")


class Everything(dict[Any, Any]):
    """One choice for whatever is asked."""

    def __init__(self, choice: str) -> None:
        super().__init__()
        self._choice = choice

    def get(self, key: Any, default: Any = None) -> Any:
        return self._choice


@pytest.fixture(params=[HostTier, FileTier])
def tier(request: pytest.FixtureRequest) -> Iterator[Tier]:
    with request.param() as tier:
        yield tier


@pytest.fixture
def host() -> Iterator[Tier]:
    with HostTier() as tier:
        yield tier


def away(model: nn.Module, tier: Tier | None, *, at_once: bool = True, **options: Any) -> Session:
    """A session that sends everything out, and waits for it."""
    return Session(model, device=CPU, tier=tier, min_bytes=1, at_once=at_once, **options)


def kept(model: nn.Module, **options: Any) -> Session:
    return Session(model, device=CPU, min_bytes=1, **options)


def recomputed(model: nn.Module, *paths: str) -> Session:
    regions = {(0, path, 0): [None] * 8 for path in paths}
    schedule = Schedule(choices=Everything("recompute"), regions=regions)
    return Session(model, device=CPU, min_bytes=1, schedule=schedule)


def grads(model: nn.Module, loss: Callable[[], Tensor], **options: Any) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    loss().backward(**options)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Mixer(nn.Module):
    """Views, a shared input, dropout, an in-place operation, a saved output and an expanded tensor."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=i == 0) for i in range(3))
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        scores = (self.q(h) @ self.k(h).transpose(-1, -2)).softmax(-1)
        x = x + scores @ self.v(h)
        gate, up = self.up(F.dropout(x, 0.2)).chunk(2, -1)
        h = F.silu(gate) * up
        h = torch.relu_(self.down(h))
        return x + h * self.scale.expand(x.shape[0], 1).unsqueeze(-1)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(*(Mixer() for _ in range(3)))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 8, 32)


@pytest.mark.parametrize("how", ["keep", "away", "later", "recompute", "autocast"])
def test_gradients_are_bitwise_those_without_hooks(model: nn.Module, x: Tensor, tier: Tier, how: str) -> None:
    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            return model(x).float().square().sum()

    expected = grads(model, loss)
    later = Schedule(choices=Everything("offload"))
    session = {
        "keep": lambda: kept(model),
        "away": lambda: away(model, tier),
        "later": lambda: away(model, tier, at_once=False, schedule=later),
        "recompute": lambda: recomputed(model, "0", "2"),
        "autocast": lambda: away(model, tier),
    }[how]()
    with session:
        assert equal(grads(model, loss), expected)
    assert equal(grads(model, loss), expected)
    assert tier.used_bytes == 0
    assert "forward" not in model[0].__dict__


def test_views_of_one_storage_share_one_copy_out_and_one_back(host: Tier) -> None:
    lin = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))
    x = torch.randn(64, 64, requires_grad=True)

    class Views(nn.Module):
        def forward(self) -> Tensor:
            h = torch.tanh(x)
            return lin[0](h).sum() + lin[1](h.T).sum() + lin[2](h[16:48]).sum()

    model = Views()
    model().backward()
    expected, x.grad = x.grad, None
    with away(model, host):
        model().backward()
    assert torch.equal(x.grad, expected)
    assert host.out_bytes == host.in_bytes == 64 * 64 * 4


def test_weights_and_views_of_them_stay(host: Tier) -> None:
    model = nn.Linear(64, 64)
    x = torch.randn(2, 64, requires_grad=True)
    with away(model, host):
        model(x).sum().backward()
    assert host.out_bytes == 2 * 64 * 4  # the input: autograd also saves weight.t(), which is no Parameter


def test_small_tensors_and_those_of_other_devices_stay(host: Tier) -> None:
    model = nn.Tanh()
    with Session(model, device=CPU, tier=host, min_bytes=1 << 10, at_once=True):
        model(torch.randn(255, requires_grad=True)).sum().backward()
        assert host.out_bytes == 0
        model(torch.randn(256, requires_grad=True)).sum().backward()
        assert host.out_bytes == 1 << 10
    with Session(model, device=torch.device("cuda"), tier=host, min_bytes=1, at_once=True):
        x = torch.randn(256, requires_grad=True)
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.device == CPU
    assert host.out_bytes == 1 << 10


@pytest.mark.parametrize("how", ["keep", "recompute"])
def test_a_change_in_place_is_an_error_as_without_hooks(how: str) -> None:
    model = nn.Sequential(nn.Tanh(), nn.Sigmoid())
    x = torch.randn(8, requires_grad=True)
    inner = x * 1
    with kept(model) if how == "keep" else recomputed(model, "0", "1"):
        y = model(inner)
    with torch.no_grad():
        (y if how == "keep" else inner).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_change_in_place_after_a_copy_leaves_the_saved_value(host: Tier) -> None:
    model = nn.Sigmoid()
    x = torch.randn(8, requires_grad=True)
    model(x).sum().backward()
    expected, x.grad = x.grad, None
    with away(model, host):
        y = model(x)
    with torch.no_grad():
        y.mul_(2)
    y.sum().backward()
    assert torch.equal(x.grad, expected)


def test_a_change_in_place_during_a_copy_is_an_error() -> None:
    model = nn.Sigmoid()
    x = torch.randn(1 << 18, requires_grad=True)
    with HostTier(out_rate=5e6) as slow, away(model, slow, at_once=False, schedule=Schedule(Everything("offload"))):
        y = model(x)
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_versions_of_one_storage_are_saved_apart(host: Tier) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.zeros(64)
            first = y * x
            y.add_(3)
            return (first + y * x).sum()

    x = torch.randn(64, requires_grad=True)
    model = Twice()
    with away(model, host):
        model(x).backward()
    assert torch.equal(x.grad, torch.full((64,), 3.0))
    assert host.used_bytes == 0


@pytest.mark.parametrize("how", ["keep", "away", "recompute"])
def test_a_graph_may_run_twice_in_part_or_be_differentiated_again(
    model: nn.Module, x: Tensor, host: Tier, how: str
) -> None:
    def sessions() -> Session:
        return {"keep": kept, "away": lambda m: away(m, host), "recompute": lambda m: recomputed(m, "0", "1")}[how](
            model
        )

    def twice() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    def part() -> list[Tensor]:
        torch.manual_seed(1)
        loss = model(x).square().sum()
        return list(torch.autograd.grad(loss, [model[2].down.weight, model[1].q.weight]))

    def double() -> list[Tensor]:
        torch.manual_seed(1)
        loss = model(x).square().sum()
        first = torch.autograd.grad(loss, [model[0].q.weight, model[2].up.weight], create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), [model[1].up.weight]))

    for run in (twice, part, double):
        expected = run()
        with sessions():
            assert equal(run(), expected), run.__name__
        gc.collect()
        assert host.used_bytes == 0


def test_what_is_dropped_or_fails_leaves_nothing(model: nn.Module, x: Tensor, host: Tier) -> None:
    expected = grads(model, lambda: model(x).sum())
    with away(model, host):
        graph = model(x)
        assert host.used_bytes > 0
        del graph  # never ran backward
        assert host.used_bytes == 0

        def fail(*_: Any) -> None:
            raise KeyError("no")

        hook = model[2].up.register_forward_hook(fail)
        with pytest.raises(KeyError):
            model(x)
        hook.remove()
        gc.collect()
        assert host.used_bytes == 0
        assert equal(grads(model, lambda: model(x).sum()), expected)
    assert host.used_bytes == 0


def test_experts_that_get_no_gradient_release_what_they_saved(host: Tier) -> None:
    experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = experts

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            outputs = [expert(x) for expert in self.experts]
            return outputs[0].sum() + outputs[2].sum(), outputs[1].sum()

    model, x = Routed(), torch.randn(4, 16)
    with away(model, host):
        for _ in range(3):
            used, dead = model(x)
            used.backward()
            del used, dead
            assert host.used_bytes == 0


@pytest.mark.parametrize("order", ["torch in ours", "ours in torch", "ours in ours", "ours in away", "away in ours"])
def test_checkpoints_nest(model: nn.Module, x: Tensor, host: Tier, order: str) -> None:
    def inner(part: nn.Module, h: Tensor) -> Tensor:
        if order == "torch in ours":
            return torch_checkpoint(part, h, use_reentrant=False)
        return checkpoint(part, h)

    def outer(h: Tensor) -> Tensor:
        return inner(model[1], inner(model[0], h))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            if order == "ours in torch":
                return model[2](torch_checkpoint(outer, x, use_reentrant=False))
            if order == "ours in away":
                return model[2](outer(x))
            return model[2](checkpoint(outer, x))

    whole = Whole()
    expected = grads(model, lambda: model(x).square().sum())
    with away(whole, host) if "away" in order else kept(whole):
        assert equal(grads(whole, lambda: whole(x).square().sum()), expected)
    assert host.used_bytes == 0


def test_checkpoint_stops_at_the_last_tensor_wanted_and_holds_what_it_is_told_to() -> None:
    calls = []

    class Noted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(self.out_features)
            return super().forward(x)

    block = nn.Sequential(Noted(8, 16), nn.Tanh(), Noted(16, 8), nn.Tanh(), Noted(8, 4))
    x = torch.randn(2, 8)
    expected = grads(block, lambda: block(x).sum())
    calls.clear()
    assert equal(grads(block, lambda: checkpoint(block, x).sum()), expected)
    assert calls == [16, 8, 4, 16, 8, 4]
    calls.clear()

    class Fixed:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()

        def get(self) -> Tensor:
            return self.tensor

    def hold(tensor: Tensor) -> Fixed | None:
        return Fixed(tensor) if tensor.shape[-1] != 16 else None

    assert equal(grads(block, lambda: checkpoint(block, x, hold=hold).sum()), expected)
    assert calls == [16, 8, 4, 16, 8], "the last one was not needed again"


def test_checkpoint_notices_a_function_that_does_something_else() -> None:
    lengths = iter([3, 2])

    def function(x: Tensor) -> Tensor:
        for _ in range(next(lengths)):
            x = x.exp()
        return x

    with pytest.raises(RuntimeError, match="saved 3 tensors the first time and 2 the second time"):
        checkpoint(function, torch.randn(8, requires_grad=True)).sum().backward()

    sizes = iter([4, 3])
    with pytest.raises(RuntimeError, match=r"saved torch.float32 \[4\] on cpu as its tensor 0 the first time and"):
        checkpoint(lambda x: x[: next(sizes)].exp(), torch.randn(8, requires_grad=True)).sum().backward()


def test_subclasses_made_of_tensors_are_handled_by_their_parts(host: Tier) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Sequential(nn.Tanh(), nn.Sigmoid())
    a, b = torch.randn(8), torch.randn(8)
    x = TwoTensor(a, b).requires_grad_()
    model(x).sum().backward()
    expected = x.grad
    y = TwoTensor(a.clone(), b.clone()).requires_grad_()
    with away(model, host):
        model(y).sum().backward()
    assert isinstance(y.grad, TwoTensor)
    assert equal([y.grad.a, y.grad.b], [expected.a, expected.b])
    assert host.out_bytes == 2 * 2 * 8 * 4


def test_sparse_and_conjugate_tensors_are_left_alone(host: Tier) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            sparse = torch.eye(8).to_sparse()
            return (torch.sparse.mm(sparse, x) * x).sum() + (z.conj() * z).real.sum()

    x, z = torch.randn(8, 8, requires_grad=True), torch.randn(8, dtype=torch.complex64, requires_grad=True)
    model = Odd()
    model(x, z).backward()
    expected = [x.grad.clone(), z.grad.clone()]
    x.grad = z.grad = None
    with away(model, host):
        model(x, z).backward()
    assert equal([x.grad, z.grad], expected)
