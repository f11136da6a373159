"""Plans of context parallelism without processes: cover, balance, needs and local masks against the dense mask."""

import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.oracle import LAYOUTS
from oarlock.attention import ColumnMask
from oarlock.attention.context_parallel import ContextPlan, plan_context_parallel
from oarlock.attention.context_parallel.balance import METHODS


@st.composite
def geometries(draw: st.DrawFn) -> tuple[ColumnMask, dict]:
    """Square masks in every layout, several batch rows and heads, and options; chunks that divide nothing."""
    num_bounds, causal = draw(st.sampled_from(LAYOUTS))
    seqlen = draw(st.integers(0, 50))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), seqlen, num_bounds)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    bounds = torch.randint(-3, seqlen + 4, shape, generator=generator)
    run = draw(st.sampled_from([1, 5, 20]))
    bounds = bounds[:, :, torch.arange(seqlen) // run * run]
    options = {
        "num_ranks": draw(st.integers(1, 7)),
        "chunk": draw(st.integers(1, 9)),
        "method": draw(st.sampled_from(METHODS)),
        "pad_to_equal": draw(st.booleans()),
    }
    return ColumnMask(bounds.int(), causal, seqlen), options


def paper_documents(seqlen: int, low: int, high: int, seed: int) -> list[int]:
    """Document sets as the FlashMask paper draws them: so many documents, borders anywhere."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(low, high + 1))
    borders = np.sort(generator.choice(np.arange(1, seqlen), count - 1, replace=False))
    return np.diff(np.concatenate([[0], borders, [seqlen]])).tolist()


@settings(max_examples=150, deadline=None)
@given(geometries())
def test_every_row_has_one_rank_and_counts_differ_by_a_chunk(geometry: tuple[ColumnMask, dict]) -> None:
    mask, options = geometry
    plan = plan_context_parallel(mask, **options)
    rows = [plan.rows(rank) for rank in range(plan.num_ranks)]
    assert sorted(torch.cat(rows).tolist()) == list(range(mask.seqlen_q))
    assert all(bool((r.diff() > 0).all()) for r in rows)
    chunks = [plan.owner.count(rank) for rank in range(plan.num_ranks)]
    assert max(chunks) - min(chunks) <= 1
    lengths = [plan.length(rank) for rank in range(plan.num_ranks)]
    assert lengths == [max(map(len, rows))] * plan.num_ranks if plan.pad_to_equal else list(map(len, rows))
    assert plan_context_parallel(mask, **options).digest == plan.digest


@settings(max_examples=150, deadline=None)
@given(geometries())
def test_the_exchange_is_the_dense_mask(geometry: tuple[ColumnMask, dict]) -> None:
    """Exactly the keys that a rank's rows see travel, both ends agree, and the local masks are the rows of the mask."""
    mask, options = geometry
    plan = plan_context_parallel(mask, **options)
    visible = mask.to_dense()
    num_ranks, seqlen = plan.num_ranks, plan.seqlen
    keys = torch.arange(mask.batch * seqlen).view(mask.batch, seqlen)  # a number for every key of every batch row
    exchanges = [plan.exchange(rank=rank) for rank in range(num_ranks)]
    sent = []
    for rank, exchange in enumerate(exchanges):
        own = keys[:, plan.rows(rank)].flatten()
        sent.append(own[exchange.send_rows].split(exchange.send_counts))
    for rank, exchange in enumerate(exchanges):
        rows = plan.rows(rank)
        arrived = torch.cat([sent[sender][rank] for sender in range(num_ranks)])
        assert [len(sent[sender][rank]) for sender in range(num_ranks)] == exchange.recv_counts
        own = torch.zeros(seqlen, dtype=torch.bool).index_fill(0, rows, True)
        needed = visible[:, :, rows].any(1).any(1) & ~own
        assert torch.equal(arrived.sort().values, keys[needed])
        if exchange.gathered_rows is not None:
            padded = [torch.nn.functional.pad(keys[:, plan.rows(r)].flatten(), (0, 99)) for r in range(num_ranks)]
            gathered = torch.cat([p[: mask.batch * exchange.longest] for p in padded])
            assert torch.equal(gathered[exchange.gathered_rows], arrived)
        assert torch.equal(exchange.local_mask.to_dense(), visible[:, :, rows][..., rows])
        places = torch.arange(len(arrived)) if exchange.slots is None else exchange.slots
        remote = torch.full((mask.batch * exchange.num_remote,), -1).index_copy(0, places, arrived)
        for batch, columns in enumerate(remote.view(mask.batch, -1)):
            seen = exchange.remote_mask.to_dense()[batch]
            real = columns >= 0
            assert torch.equal(seen[:, :, real], visible[batch][:, rows][..., columns[real] % seqlen])
            assert bool((columns[real] // seqlen == batch).all())
            assert not seen[:, :, ~real].any()
        assert exchange.is_silent == (int(plan.kv_rows().sum()) == 0)
        assert plan.kv_rows()[rank].tolist() == exchange.recv_counts


@settings(max_examples=50, deadline=None)
@given(geometries())
def test_pairs_and_shares_are_counts_of_the_dense_mask(geometry: tuple[ColumnMask, dict]) -> None:
    mask, options = geometry
    plan = plan_context_parallel(mask, **options)
    per_row = mask.to_dense().sum((0, 1, 3))
    pairs = [int(per_row[plan.rows(rank)].sum()) for rank in range(plan.num_ranks)]
    assert plan.pairs().tolist() == pairs
    assert plan.balance == (max(pairs) * plan.num_ranks / sum(pairs) if sum(pairs) else 1.0)
    bytes_ = plan.kv_bytes(2, 64, 32, dtype=torch.float32)
    assert bytes_.tolist() == (plan.kv_rows().sum(1) * 2 * 96 * 4).tolist()
    assert 0 <= plan.kv_share() <= 1


@settings(max_examples=50, deadline=None)
@given(geometries())
def test_shards_come_together_again(geometry: tuple[ColumnMask, dict]) -> None:
    mask, options = geometry
    plan = plan_context_parallel(mask, **options)
    whole = torch.randn(2, plan.seqlen, 3)
    parts = [plan.shard(whole, 1, rank=rank) for rank in range(plan.num_ranks)]
    assert [part.shape[1] for part in parts] == [plan.length(rank) for rank in range(plan.num_ranks)]
    assert torch.equal(plan.unshard(parts, dim=1), whole)
    assert torch.equal(plan.unshard(parts, dim=-2), whole)
    padded = plan.shard(whole, -2, fill=7)
    assert bool((padded[:, len(plan.rows()) :] == 7).all())
    assert plan.position_ids[: len(plan.rows())].tolist() == plan.rows().tolist()


@pytest.mark.parametrize(("num_ranks", "seqlen", "documents"), [(8, 16384, (3, 7)), (16, 32768, (10, 14))])
def test_documents_are_balanced_within_five_percent(num_ranks: int, seqlen: int, documents: tuple[int, int]) -> None:
    """Chunks cost exact pairs; 16 chunks per rank leave enough to choose from."""
    for seed in range(5):
        mask = ColumnMask.causal_document(paper_documents(seqlen, *documents, seed))
        plan = plan_context_parallel(mask, num_ranks=num_ranks)
        assert plan.balance <= 1.05
        assert plan.kv_share() < plan_context_parallel(mask, num_ranks=num_ranks, method="lpt").kv_share()


def test_plain_causal_is_even_and_sends_no_more_than_zigzag() -> None:
    mask = ColumnMask.plain_causal(4096)
    zigzag = plan_context_parallel(mask, num_ranks=4, method="dualchunk")
    assert zigzag.balance == 1.0
    assert zigzag.owner == (*[0] * 4, *[1] * 4, *[2] * 4, *[3] * 4, *[3] * 4, *[2] * 4, *[1] * 4, *[0] * 4)
    plan = plan_context_parallel(mask, num_ranks=4)
    assert plan.balance <= 1.02
    assert plan.kv_share() <= zigzag.kv_share()


def test_a_full_mask_needs_no_shuffling() -> None:
    plan = plan_context_parallel(ColumnMask.full(4096), num_ranks=4)
    assert plan.balance == 1.0
    assert plan.kv_share() == 1.0
    assert plan.exchange().gathered_rows is not None


def test_whole_documents_stay_on_their_ranks() -> None:
    plan = plan_context_parallel(ColumnMask.causal_document([1024] * 4), num_ranks=4)
    assert plan.balance == 1.0
    assert plan.exchange().is_silent


def test_one_plan_serves_a_model_with_full_and_window_layers() -> None:
    """Several masks must share one shard plan (pytorch/torchtitan#3972); each has exchanges of its own."""
    mask = ColumnMask.causal_document([300, 700])
    window = ColumnMask.causal_document([300, 700], window=64)
    plan = plan_context_parallel(mask, num_ranks=3)
    assert plan.kv_rows(window).sum() < plan.kv_rows().sum()
    assert plan.exchange(window) is plan.exchange(window)
    assert plan.exchange(window) is not plan.exchange()
    dense = window.to_dense()[:, :, plan.rows(1)][..., plan.rows(1)]
    assert torch.equal(plan.exchange(window, rank=1).local_mask.to_dense(), dense)


def test_a_forgotten_mask_takes_its_exchange_along() -> None:
    plan = plan_context_parallel(ColumnMask.plain_causal(64), num_ranks=2)
    plan.exchange(ColumnMask.full(64))
    assert len(plan._exchanges) == 0


def test_short_sequences_get_smaller_chunks() -> None:
    def chunk(seqlen: int, num_ranks: int) -> int:
        return plan_context_parallel(ColumnMask.plain_causal(seqlen), num_ranks=num_ranks).chunk

    assert [chunk(1 << 17, 64), chunk(2048, 2), chunk(2048, 4), chunk(100, 2)] == [128, 128, 64, 16]


def test_misuse_is_answered_in_words() -> None:
    mask = ColumnMask.plain_causal(64)
    plan = plan_context_parallel(mask, num_ranks=2)
    with pytest.raises(ValueError, match="32 rows and 64 keys"):
        plan_context_parallel(ColumnMask.plain_causal(32, 64), num_ranks=2)
    with pytest.raises(ValueError, match=r"unknown method 'zigzag'.*dualchunk"):
        plan_context_parallel(mask, num_ranks=2, method="zigzag")
    with pytest.raises(ValueError, match="num_ranks = 0"):
        plan_context_parallel(mask, num_ranks=0)
    with pytest.raises(ValueError, match="whole sequence of 64 rows"):
        plan.shard(torch.zeros(1, 32), 1)
    with pytest.raises(ValueError, match="pass those of all ranks"):
        plan.unshard([torch.zeros(32)], 0)
    with pytest.raises(ValueError, match=r"must lie in 0 \.\. 1"):
        plan.rows(2)
    with pytest.raises(ValueError, match="mask of the whole sequence"):
        plan.exchange(ColumnMask.plain_causal(32))


def test_a_long_sequence_is_planned_quickly() -> None:
    """A guard against quadratic work in Python, far from the measured time (see the benchmark)."""
    mask = ColumnMask.causal_document(paper_documents(1 << 17, 11, 15, 0))
    began = time.process_time()
    plan = plan_context_parallel(mask, num_ranks=64)
    plan.exchange()
    assert time.process_time() - began < 20
    assert plan.balance <= 1.05


@pytest.mark.parametrize("num_ranks", [1, 3, 40])
def test_the_picture_is_well_formed(num_ranks: int, tmp_path) -> None:
    plan: ContextPlan = plan_context_parallel(ColumnMask.causal_document([500, 1500]), num_ranks=num_ranks)
    drawn = plan.plot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text() == drawn
    root = ElementTree.fromstring(drawn)
    assert f"{num_ranks} ranks" in (root.find("{http://www.w3.org/2000/svg}title").text or "")
    assert ElementTree.fromstring(plan_context_parallel(ColumnMask.full(0), num_ranks=2).plot()) is not None


@pytest.mark.parametrize("method", ["auto", "dualchunk"])
def test_the_pictures_of_the_page_are_those_of_its_code(method: str) -> None:
    """To draw them anew: call ``plot`` with the file's path."""
    path = Path(__file__).parents[2] / "docs" / "pictures" / "context_parallel" / f"{method}.svg"
    plan = plan_context_parallel(ColumnMask.causal_document([5000, 2200, 900, 92]), num_ranks=4, method=method)
    assert path.read_text(encoding="utf-8") == plan.plot()
