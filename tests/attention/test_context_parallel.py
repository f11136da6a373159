"""Context parallelism on 2, 3 and 4 real processes against the dense definition in float64, computed by each alone."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from attention.oracle import LAYOUTS, dense_attention
from oarlock.attention import ColumnMask
from oarlock.attention.context_parallel import ContextPlan, attend_context_parallel, plan_context_parallel
from oarlock.attention.context_parallel.balance import METHODS
from oarlock.parallel import initialize
from oarlock.ranks import JobError
from process_group import run_ranks

GROUPS = {2: [0, 1], 3: [1, 2, 3], 4: [0, 1, 2, 3]}
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 3e-2}
"""Of unit-normal inputs; bfloat16 keeps 8 bits."""
NUM_CASES = 24
RESULTS = ("out", "lse", "query", "key", "value", "sink")


@dataclass
class Case:
    """Inputs that all ranks draw alike."""

    mask: ColumnMask
    tensors: list[Tensor]
    """Query, key, value, sink, and the gradients that arrive at out and lse."""
    options: dict[str, Any]
    has_sink: bool = False


def make_case(mask: ColumnMask, seed: int, *, batch: int = 1, heads=(2, 1), dims=(8, 8), dtype=torch.float32) -> Case:
    generator = torch.Generator().manual_seed(seed)
    seqlen, (hq, hk), (d, dv) = mask.seqlen_q, heads, dims
    shapes = [(batch, seqlen, hq, d), (batch, seqlen, hk, d), (batch, seqlen, hk, dv), (hq,), (batch, seqlen, hq, dv)]
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in (*shapes, (batch, hq, seqlen))]
    if dtype == torch.bfloat16:
        tensors[5] = tensors[5].float()
    return Case(mask, tensors, {})


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    num_bounds, causal = draw.choice(LAYOUTS)
    batch, hk = draw.choice([1, 1, 2, 3]), draw.choice([1, 2])
    hq = hk * draw.choice([1, 2])
    seqlen = draw.randint(1, 70)
    shape = (draw.choice([1, batch]), draw.choice([1, hk, hq]), seqlen, num_bounds)
    bounds = torch.randint(-3, seqlen + 4, shape, generator=torch.Generator().manual_seed(seed))
    run = draw.choice([1, 7, 20])
    bounds = bounds[:, :, torch.arange(seqlen) // run * run]
    mask = ColumnMask(bounds.int(), causal, seqlen)
    dtype = draw.choice([torch.float32, torch.float64, torch.float32, torch.float64, torch.bfloat16])
    dims = (8, draw.choice([4, 8, 16]))
    case = make_case(mask, seed, batch=batch, heads=(hq, hk), dims=dims, dtype=dtype)
    case.has_sink = draw.random() < 0.5
    case.options = {
        "chunk": draw.randint(1, 20),
        "method": draw.choice(METHODS),
        "pad_to_equal": draw.random() < 0.3,
    }
    return case


def with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """The sink by its definition, one more logit without a value."""
    weight = torch.where(lse == -torch.inf, 0.0, torch.exp(lse.clamp(min=-1e300) - sink[:, None]))
    share = weight / (1 + weight)
    seen = lse != -torch.inf
    safe = torch.where(seen, lse, 0.0)
    total = torch.where(seen, torch.logaddexp(safe, sink[:, None].expand_as(safe)), sink[:, None].expand_as(safe))
    return out * share.mT[..., None], total


def expected(case: Case) -> list[Tensor]:
    """out, lse and the gradients of query, key, value and sink of one process."""
    query, key, value, sink, grad_out, grad_lse = (x.double() for x in case.tensors)
    leaves = [x.requires_grad_() for x in (query, key, value, sink)]
    visible = case.mask.to_dense().expand(len(query), -1, -1, -1)
    out, lse = dense_attention(query, key, value, visible, query.shape[-1] ** -0.5)
    if case.has_sink:
        out, lse = with_sink(out, lse, sink)
    loss = (out * grad_out).sum() + (torch.where(lse == -torch.inf, 0.0, lse) * grad_lse).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [out.detach(), lse.detach(), *(torch.zeros(()) if g is None else g for g in gradients)]


def obtained(case: Case, plan: ContextPlan, *, recompute: bool = False) -> list[Tensor]:
    """The same of this rank's rows; the gradient of the sink summed over the group."""
    query, key, value, grad_out = (plan.shard(case.tensors[i], 1) for i in (0, 1, 2, 4))
    grad_lse = plan.shard(case.tensors[5], 2)
    sink = case.tensors[3].clone()
    leaves = [x.clone().requires_grad_() for x in (query, key, value, sink)]

    def attend(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return attend_context_parallel(q, k, v, case.mask, plan, learnable_sink=s if case.has_sink else None)

    out, lse = checkpoint(attend, *leaves, use_reentrant=False) if recompute else attend(*leaves)
    loss = (out * grad_out).sum() + (torch.where(lse == -torch.inf, 0.0, lse) * grad_lse).sum()
    gradients = list(torch.autograd.grad(loss, leaves, allow_unused=True))
    if case.has_sink:
        gradients[3] = gradients[3].double()
        if plan.group is not None:
            dist.all_reduce(gradients[3], group=plan.group)
    else:
        gradients[3] = torch.zeros(())
    return [out.detach(), lse.detach(), *gradients]


def errors(case: Case, plan: ContextPlan, found: list[Tensor]) -> dict[str, float]:
    """Largest deviation of each result, relative to its largest entry where that exceeds 1."""
    rows, deviations = plan.rows(), {}
    for name, whole, part in zip(RESULTS, expected(case), found, strict=True):
        if name == "sink":
            wanted, got = whole, part
        else:
            dim = 2 if name == "lse" else 1
            wanted, got = whole.index_select(dim, rows), part.narrow(dim, 0, len(rows)).double()
            padding = part.narrow(dim, len(rows), plan.length() - len(rows))
            assert bool((padding == (-torch.inf if name == "lse" else 0)).all())
        same = (wanted == got) | ((wanted - got).abs() == 0)
        difference = torch.where(same, 0.0, (wanted - got).abs())
        scale = max(1.0, float(whole[whole.isfinite()].abs().max())) if whole.isfinite().any() else 1.0
        deviations[name] = float(difference.max()) / scale if difference.numel() else 0.0
    return deviations


def groups_of_this_rank() -> dict[int, dist.ProcessGroup]:
    groups = {size: dist.new_group(ranks) for size, ranks in GROUPS.items()}
    return {size: group for size, group in groups.items() if dist.get_rank() in GROUPS[size]}


def special_cases(size: int) -> dict[str, Case]:
    """The smallest case of each trap; a document or window that must not be forgotten."""
    causal = ColumnMask.plain_causal(40)
    blind = ColumnMask(torch.full((1, 1, 40, 1), 10, dtype=torch.int32), True, 40)  # rows from 10 on see nothing
    cases = {
        "idle rank": (ColumnMask.plain_causal(9), {"chunk": 9}),
        "first rank needs nothing": (causal, {"chunk": 4, "method": "contiguous"}),
        "nobody needs anything": (ColumnMask.causal_document([12] * size), {"chunk": 4}),
        "everything is needed": (ColumnMask.full(41), {"chunk": 4}),
        "some rows see nothing": (blind, {"chunk": 4, "method": "contiguous"}),
        "nothing is visible": (ColumnMask(torch.zeros(1, 1, 40, 1, dtype=torch.int32), True, 40), {"chunk": 4}),
        "borders inside chunks": (ColumnMask.causal_document([5, 17, 1, 30, 6]), {"chunk": 8}),
        "sliding window": (ColumnMask.causal_document([59], window=7), {"chunk": 4}),
        "padded to equal": (ColumnMask.plain_causal(45), {"chunk": 4, "pad_to_equal": True}),
    }
    found = {}
    for number, (name, (mask, options)) in enumerate(cases.items()):
        found[name] = make_case(mask, number, batch=2, heads=(4, 2))
        found[name].options, found[name].has_sink = options, True
    return found


def window_is_kept(plan_group: dist.ProcessGroup) -> list[bool]:
    """Plan with the full mask, attend with a window: neither is replaced by plain causal."""
    full, window = ColumnMask.plain_causal(64), ColumnMask.causal_document([64], window=5)
    plan = plan_context_parallel(full, plan_group, chunk=4)
    case = make_case(window, 1)
    found = obtained(case, plan)
    as_causal = make_case(full, 1)
    exact = max(errors(case, plan, found).values()) < TOLERANCE["float32"]
    return [exact, errors(as_causal, plan, found)["out"] > 0.1]


def documents_are_apart(group: dist.ProcessGroup) -> bool:
    """Another first document, even NaN, changes no bit of the second one's results."""
    mask = ColumnMask.causal_document([21, 43])
    plan = plan_context_parallel(mask, group, chunk=4)
    case = make_case(mask, 2)
    before = obtained(case, plan)
    for tensor in case.tensors[:3]:
        tensor[:, :21] = torch.nan
    after = obtained(case, plan)
    second = plan.rows() >= 21
    dims = [1, 2, 1, 1, 1]
    rows = second.nonzero().flatten()
    pairs = zip(before, after, dims, strict=False)
    return all(torch.equal(a.index_select(dim, rows), b.index_select(dim, rows)) for a, b, dim in pairs)


def unlike_plans(group: dist.ProcessGroup) -> str:
    mask = ColumnMask.causal_document([10 + dist.get_rank(group), 20 - dist.get_rank(group)])
    try:
        plan_context_parallel(mask, group)
    except JobError as error:
        return str(error)
    return ""


def plans_of_a_mesh() -> tuple[int, int, bool]:
    """Ranks and place of the plan of one axis; and whether two axes are refused."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    plan = plan_context_parallel(ColumnMask.plain_causal(64), mesh["context"])
    with pytest.raises(ValueError, match=r'pass one of them: mesh\["context"\]') as refused:
        plan_context_parallel(ColumnMask.plain_causal(64), mesh)
    return plan.num_ranks, plan.rank, "data" in str(refused.value)


def attend_in_every_way() -> dict[str, Any]:
    results: dict[str, Any] = {}
    with initialize("cpu"):
        results["mesh"] = plans_of_a_mesh()
        for size, group in groups_of_this_rank().items():
            cases = {f"random {seed}": random_case(1000 * size + seed) for seed in range(NUM_CASES)}
            found = {}
            for name, case in {**cases, **special_cases(size)}.items():
                plan = plan_context_parallel(case.mask, group, **case.options)
                dtype = str(case.tensors[0].dtype).removeprefix("torch.")
                found[name] = [dtype, errors(case, plan, obtained(case, plan))]
            case = random_case(1)
            plan = plan_context_parallel(case.mask, group, **case.options)
            once, again = obtained(case, plan), obtained(case, plan, recompute=True)
            results[str(size)] = {
                "cases": found,
                "owners": list(plan.owner),
                "recomputed": all(torch.equal(a, b) for a, b in zip(once, again, strict=True)),
                "window": window_is_kept(group),
                "documents": documents_are_apart(group),
                "whole": torch.equal(plan.unshard(plan.shard(case.tensors[0], 1), 1), case.tensors[0]),
                "unlike": unlike_plans(group),
            }
    return results


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return run_ranks(4, attend_in_every_way)


@pytest.fixture(params=GROUPS)
def of_group(request: pytest.FixtureRequest, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of the ranks of a group."""
    return [results[rank][str(request.param)] for rank in GROUPS[request.param]]


def test_any_mask_equals_one_process(of_group: list[dict[str, Any]]) -> None:
    """Random layouts, heads, batches, dtypes, chunks and methods: out, lse, sink and all gradients."""
    bad = [
        f"rank {rank}, {name} in {dtype}: {result} off by {error}"
        for rank, found in enumerate(of_group)
        for name, (dtype, deviations) in found["cases"].items()
        if name.startswith("random")
        for result, error in deviations.items()
        if not error <= TOLERANCE[dtype]
    ]
    assert not bad
    dtypes = {dtype for dtype, _ in of_group[0]["cases"].values()}
    assert dtypes == set(TOLERANCE)


@pytest.mark.parametrize("name", special_cases(2))
def test_special_cases(of_group: list[dict[str, Any]], name: str) -> None:
    for found in of_group:
        _, deviations = found["cases"][name]
        assert max(deviations.values()) <= TOLERANCE["float32"]


def test_a_window_is_not_replaced_by_causal(of_group: list[dict[str, Any]]) -> None:
    """huggingface/accelerate#4177: windowed models were trained with full causal attention, silently."""
    assert all(found["window"] == [True, True] for found in of_group)


def test_documents_do_not_leak_across_ranks(of_group: list[dict[str, Any]]) -> None:
    """huggingface/trl#6843: with packing, rows saw the documents before theirs, silently."""
    assert all(found["documents"] for found in of_group)


def test_all_ranks_make_the_same_plan(of_group: list[dict[str, Any]]) -> None:
    assert all(found["owners"] == of_group[0]["owners"] for found in of_group)


def test_an_axis_of_a_device_mesh_is_a_group(results: list[dict[str, Any]]) -> None:
    assert [tuple(result["mesh"]) for result in results] == [(2, place, True) for place in (0, 1, 0, 1)]


def test_unlike_plans_are_an_error_on_every_rank(of_group: list[dict[str, Any]]) -> None:
    assert all("another plan than rank 0" in found["unlike"] for found in of_group)


def test_activation_checkpointing_and_repeats_give_the_same_bits(of_group: list[dict[str, Any]]) -> None:
    assert all(found["recomputed"] for found in of_group)


def test_the_whole_comes_back(of_group: list[dict[str, Any]]) -> None:
    assert all(found["whole"] for found in of_group)


def test_one_rank_needs_no_group() -> None:
    case = random_case(7)
    plan = plan_context_parallel(case.mask, chunk=3)
    dtype = str(case.tensors[0].dtype).removeprefix("torch.")
    assert max(errors(case, plan, obtained(case, plan)).values()) <= TOLERANCE[dtype]


def test_a_sequence_without_rows() -> None:
    mask = ColumnMask.plain_causal(0)
    out, lse = attend_context_parallel(*make_case(mask, 0).tensors[:3], mask, plan_context_parallel(mask))
    assert (out.shape, lse.shape) == ((1, 0, 2, 8), (1, 2, 0))


def test_misuse_is_answered_in_words() -> None:
    mask = ColumnMask.plain_causal(32)
    query, key, value = make_case(mask, 0).tensors[:3]
    with pytest.raises(ValueError, match="plan for 2 ranks is simulated"):
        attend_context_parallel(query, key, value, mask, plan_context_parallel(mask, num_ranks=2))
    plan = plan_context_parallel(mask)
    with pytest.raises(ValueError, match=r"holds 32 rows, query has 16 and key 32; .*plan.shard"):
        attend_context_parallel(query[:, :16], key, value, mask, plan)
    with pytest.raises(ValueError, match="mask of the whole sequence"):
        attend_context_parallel(query, key, value, ColumnMask.plain_causal(16), plan)
    of_three = ColumnMask(mask.bounds.expand(3, -1, -1, -1), True, 32)
    with pytest.raises(ValueError, match="mask has batch size 3"):
        attend_context_parallel(query, key, value, of_three, plan)
