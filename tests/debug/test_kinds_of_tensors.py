"""Every kind of tensor and every transform that torch has can be in a trace; equal values have equal digests."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from oarlock import debug
from oarlock.debug.content import Reader

pytestmark = pytest.mark.filterwarnings("ignore")  # sparse, nested and quantized tensors warn of themselves


def optimizer_step() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.AdamW(model.parameters()).step()


def inference() -> Tensor:
    with torch.inference_mode():
        return nn.Linear(2, 2)(torch.ones(1, 2)).add_(1)


def sparse_gradient() -> None:
    functional.embedding(torch.tensor([0, 2]), torch.randn(4, 3, requires_grad=True), sparse=True).sum().backward()


PROGRAMS: dict[str, Callable[[], object]] = {
    "sparse": lambda: (torch.eye(3).to_sparse() * 2) @ torch.ones(3, 3),
    "csr": lambda: torch.eye(3).to_sparse_csr() @ torch.ones(3, 3),
    "sparse gradient": sparse_gradient,
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize(),
    "complex": lambda: (torch.ones(3, dtype=torch.complex64, requires_grad=True) * 1j).abs().sum().backward(),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj().imag + 1,
    "empty": lambda: torch.empty(0, 3, requires_grad=True).sum().backward(),
    "bfloat16": lambda: torch.ones(3).bfloat16() * 2,
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn).float(),
    "uint16": lambda: torch.ones(3, dtype=torch.uint16).to(torch.int32),
    "meta": lambda: torch.ones(2, device="meta") + 1,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2,
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged) * 2,
    "masked": lambda: torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])).sin(),
    "vmap": lambda: torch.vmap(lambda x: (x * 2).sum())(torch.ones(3, 4)),
    "grad": lambda: torch.func.grad(lambda x: (x * 2).sin().sum())(torch.ones(3)),
    "hessian": lambda: torch.func.hessian(lambda x: (x**3).sum())(torch.ones(3)),
    "jvp": lambda: torch.func.jvp(torch.sin, (torch.ones(3),), (torch.ones(3),)),
    "inference": inference,
    "optimizer": optimizer_step,
    "foreach": lambda: torch._foreach_add_([torch.ones(2), torch.ones(3)], 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_can_be_traced_and_drawn(name: str) -> None:
    before = (nn.Module.__call__, torch.autograd.Function.__dict__["apply"])
    for options in ({"digests": "sha1", "probes": True}, {"digests": "digest64"}, {"digests": "md5", "decimals": 3}):
        with debug.trace(stacks=True, **options) as trace:  # type: ignore[arg-type]
            PROGRAMS[name]()
        assert trace.records
        trace.graph()
    with debug.find_nonfinite() as found:
        PROGRAMS[name]()
    assert found.first is None
    assert (nn.Module.__call__, torch.autograd.Function.__dict__["apply"]) == before


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2, torch.bfloat16, torch.float64])
def test_nan_is_found_in_every_dtype(dtype: torch.dtype) -> None:
    value = torch.tensor([1.0, float("nan")]).to(dtype)
    with debug.find_nonfinite() as found:
        value.clone()
    assert found.first is not None
    assert found.first.outputs[0].nan == 1


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "digest64"])
def test_the_digest_is_of_the_values_not_of_how_they_lie(algorithm: str) -> None:
    read = Reader(algorithm, probes=True)  # type: ignore[arg-type]
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    z = torch.view_as_complex(x.view(4, 3, 2).contiguous())
    for one, other in [
        (x.T, x.T.contiguous()),
        (z.conj(), z.conj().resolve_conj()),
        (torch._neg_view(x), -x),
        (torch.ones(1).expand(5), torch.ones(5)),
        (nn.Parameter(x), x),
        (z.conj().imag, z.conj().imag.clone()),
        (x.bfloat16().T, x.bfloat16().T.contiguous()),
    ]:
        assert read(one) == read(other)
    assert read(torch.tensor(0.0)) != read(torch.tensor(-0.0))


@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_model_runs_eagerly_in_a_trace_and_compiled_behind_it(warm: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled, x = torch.compile(model, backend=backend), torch.ones(2, 4)
    traces = []
    if warm:
        compiled(x)
    for run in (model, compiled):
        with debug.trace(model, digests="sha1") as trace:
            run(x).sum().backward()
        traces.append(trace.records)
        model.zero_grad()
    assert len(graphs) == warm
    assert debug.compare(*traces).same
    assert [r["name"] for r in traces[0]] == [r["name"] for r in traces[1]]
    compiled(x)
    assert len(graphs) == 1
    torch.compiler.reset()


RECORDERS = [debug.trace, debug.errors, debug.find_nonfinite, partial(debug.loglevel, 1)]


@pytest.mark.parametrize("recorder", RECORDERS)
def test_lazy_modules_are_filled_as_without(recorder: Callable) -> None:
    for layer, x in ((nn.LazyLinear(3), torch.ones(1, 2)), (nn.LazyConv1d(2, 1), torch.ones(1, 4, 5))):
        with recorder():
            layer(x).sum().backward()
        assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.parametrize("recorder", RECORDERS)
def test_writes_under_transforms_are_computed_as_without(recorder: Callable) -> None:
    def twice(x: Tensor) -> Tensor:
        return x.clone().mul_(2)

    def derived() -> list[Tensor]:
        x = torch.arange(6.0).reshape(3, 2)
        second = torch.func.hessian(lambda v: twice(v).prod())(x[0])
        return [torch.func.vmap(twice)(x), torch.func.jacrev(twice)(x[0]), second]

    wanted = derived()
    with recorder():
        found = derived()
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)
