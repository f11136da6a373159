"""Every constructor against the predicate that defines it, pair by pair."""

import pytest
import torch

from oarlock.attention import ColumnMask

S = 60
I, J = torch.arange(S)[:, None], torch.arange(S)[None]  # noqa: E741
CAUSAL = I >= J
LENGTHS = [17, 9, 21, 13]
DOC = torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))
BEGIN = torch.tensor([0, 17, 26, 47])[DOC]
SAME = DOC[:, None] == DOC[None]


def shares_question():
    groups = [[6, 5, 4, 8], [9, 7, 3], [10, 4, 4]]
    group = [g for g, lengths in enumerate(groups) for _ in range(sum(lengths))]
    part = [p for lengths in groups for p, length in enumerate(lengths) for _ in range(length)]
    group, part = torch.tensor(group), torch.tensor(part)
    same_part = (part[None] == 0) | (part[:, None] == part[None])
    return ColumnMask.share_question(groups), CAUSAL & (group[:, None] == group[None]) & same_part


def is_tree():
    parents, path = [-1], [0]
    for token in range(1, S):
        while len(path) > 1 and torch.rand(()) < 0.4:
            path.pop()
        parents.append(path[-1])
        path.append(token)
    parents[40] = -1  # a second root
    for token in range(41, S):
        parents[token] = max(parents[token], 40)
    visible = torch.zeros(S, S, dtype=torch.bool)
    for token in range(S):
        ancestor = token
        while ancestor >= 0:
            visible[token, ancestor] = True
            ancestor = parents[ancestor]
    return ColumnMask.tree(parents), visible


def drops_ranges():
    dropped = [(0, 6), (20, 29), (40, 45)]
    which = torch.full((S,), -1)
    for number, (a, b) in enumerate(dropped):
        which[a:b] = number
    return ColumnMask.qk_sparse(S, dropped), CAUSAL & ~((which[:, None] >= 0) & (which[:, None] == which[None]))


def diffuses(length, block):
    block_of = torch.arange(2 * length) % length // block
    is_clean = torch.arange(2 * length) >= length
    bi, bj, ci, cj = block_of[:, None], block_of[None], is_clean[:, None], is_clean[None]
    visible = ((bi == bj) & ~ci & ~cj) | ((bi > bj) & cj & ~ci) | ((bi >= bj) & ci & cj)
    return ColumnMask.block_diffusion(length, block=block), visible


PREFIXES = torch.tensor([5, 9, 30, 0])
MASKS = {
    "full": lambda: (ColumnMask.full(S), torch.ones(S, S, dtype=torch.bool)),
    "causal": lambda: (ColumnMask.plain_causal(S), CAUSAL),
    "sliding window": lambda: (ColumnMask.sliding_window(S, left=6), CAUSAL & (I - J < 7)),
    "two-sided window": lambda: (ColumnMask.sliding_window(S, left=5, right=3), (I - J <= 5) & (J - I <= 3)),
    "causal document": lambda: (ColumnMask.causal_document(LENGTHS), CAUSAL & SAME),
    "document": lambda: (ColumnMask.document(LENGTHS), SAME),
    "share question": shares_question,
    "global window": lambda: (
        ColumnMask.global_window(S, num_global=4, left=6, right=5),
        (I < 4) | (J < 4) | ((I - J <= 6) & (J - I <= 5)),
    ),
    "causal blockwise": lambda: (ColumnMask.causal_blockwise(LENGTHS), CAUSAL & (SAME | (DOC[:, None] == 3))),
    "prefix LM": lambda: (ColumnMask.prefix_lm(S, 20), CAUSAL | (J < 20)),
    "prefix document": lambda: (
        ColumnMask.prefix_document(LENGTHS, PREFIXES.tolist()),
        SAME & (CAUSAL | (J - BEGIN[None] < PREFIXES[DOC][None])),
    ),
    "QK-sparse": drops_ranges,
    "chunked causal": lambda: (ColumnMask.chunked_causal(S, chunk=16), CAUSAL & (I // 16 == J // 16)),
    "block causal": lambda: (ColumnMask.block_causal(S, block=6), I // 6 >= J // 6),
    "tree": is_tree,
    "block diffusion": lambda: diffuses(30, 5),
    "block diffusion, short last block": lambda: diffuses(29, 8),
    "sinks and window": lambda: (
        ColumnMask.sink_window(S, num_sinks=4, window=9),
        CAUSAL & ((J < 4) | (I - J < 9)),
    ),
    "right padding": lambda: (ColumnMask.padding([50], S), CAUSAL & (I < 50)),
    "left padding": lambda: (ColumnMask.padding([50], S, side="left"), CAUSAL & (J >= 10)),
    "padding both ways": lambda: (ColumnMask.padding([50], S, causal=False), (I < 50) & (J < 50)),
    "left padding both ways": lambda: (
        ColumnMask.padding([50], S, side="left", causal=False),
        (I >= 10) & (J >= 10),
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_constructor_gives_its_predicate(name):
    mask, visible = MASKS[name]()
    assert torch.equal(mask.to_dense()[0, 0], visible)
    again = ColumnMask.from_dense(visible)
    assert torch.equal(again.to_dense()[0, 0], visible)
    assert again.bounds.shape[3] <= mask.bounds.shape[3]
    assert again.equal(mask)


def test_empty_intervals_are_written_at_the_end():
    """(S, S) keeps them out of the minimum over a block of columns."""
    mask = ColumnMask.global_window(S, num_global=4, left=6, right=5)
    assert (mask.bounds[0, 0, :4] == S).all()
    assert (ColumnMask.causal_blockwise(LENGTHS).bounds[0, 0, 47:] == S).all()


@pytest.mark.parametrize(("rows", "keys"), [(9, 9), (4, 12), (12, 4), (1, 7), (0, 3), (3, 0)])
def test_constructors_with_rows_and_keys(rows, keys):
    i, j = torch.arange(rows)[:, None], torch.arange(keys)[None]
    p = i + keys - rows
    pairs = [
        (ColumnMask.sink_window(rows, keys, num_sinks=2, window=3), (j <= p) & ((j < 2) | (p - j < 3))),
        (ColumnMask.chunked_causal(rows, keys, chunk=4), (j <= p) & (p // 4 == j // 4)),
        (ColumnMask.block_causal(rows, keys, block=4), p // 4 >= j // 4),
    ]
    for mask, visible in pairs:
        assert torch.equal(mask.to_dense()[0, 0], visible)


def test_hash_sparse():
    """Rows and columns after the stable sort by bucket."""
    query, key = torch.randint(0, 5, (2, 2, 3, S)).unbind()
    query_order, key_order = (torch.argsort(x, dim=-1, stable=True) for x in (query, key))
    same = query.gather(-1, query_order)[..., :, None] == key.gather(-1, key_order)[..., None, :]
    visible = same & (query_order[..., :, None] >= key_order[..., None, :])
    assert torch.equal(ColumnMask.hash_sparse(query, key).to_dense(), visible)


def test_key_eviction():
    evicted_at = torch.minimum(torch.arange(S) + 1 + torch.randint(0, 30, (2, 3, S)), torch.tensor(S))
    mask = ColumnMask.key_eviction(evicted_at)
    assert torch.equal(mask.to_dense(), CAUSAL & (evicted_at[:, :, None, :] > I))


def test_batches():
    lengths = [[3, 7], [10]]
    i, j = torch.arange(10)[:, None], torch.arange(10)[None]
    two = ColumnMask.prefix_document(lengths, [[1, 2], [4]]).to_dense()[:, 0]
    for row, (n, p) in enumerate(zip(lengths, [[1, 2], [4]], strict=True)):
        assert torch.equal(two[row], ColumnMask.prefix_document(n, p).to_dense()[0, 0])
    assert torch.equal(ColumnMask.prefix_lm(10, [2, 5]).to_dense()[1, 0], (j <= i) | (j < 5))
    both = ColumnMask.share_question([[[2, 3, 5]], [[4, 1], [2, 3]]])
    for row, groups in enumerate([[[2, 3, 5]], [[4, 1], [2, 3]]]):
        assert torch.equal(both.to_dense()[row, 0], ColumnMask.share_question(groups).to_dense()[0, 0])
    assert ColumnMask.tree([[-1, 0, 0], [-1, 0, 1]]).to_dense()[:, 0, 2].tolist() == [
        [True, False, True],
        [True, True, True],
    ]
    assert torch.equal(ColumnMask.causal_blockwise(lengths).to_dense()[1, 0], j <= i)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [[0, 3, 4, 10], [0, 5, 5, 12], [0, 1, 2, 20], [0, 0, 6, 8]])
def test_cumulative_lengths(causal, keys):
    rows = [0, 3, 4, 10]
    visible = torch.zeros(10, keys[-1], dtype=torch.bool)
    for d in range(3):
        for i in range(rows[d], rows[d + 1]):
            for j in range(keys[d], keys[d + 1]):
                visible[i, j] = not causal or (rows[d + 1] - i) <= (keys[d + 1] - j)
    for form in (list, lambda x: torch.tensor(x, dtype=torch.int32)):
        mask = ColumnMask.from_cu_seqlens(form(rows), form(keys), causal=causal)
        assert torch.equal(mask.to_dense()[0, 0], visible)
    if causal:
        windowed = ColumnMask.from_cu_seqlens(rows, keys, window=2).to_dense()[0, 0]
        behind = torch.tensor(
            [
                [(keys[d + 1] - j) - (rows[d + 1] - i) for j in range(keys[-1])]
                for d in range(3)
                for i in range(rows[d], rows[d + 1])
            ]
        )
        assert torch.equal(windowed, visible & (behind < 2))


def test_position_ids():
    ids = torch.tensor([[0, 1, 2, 0, 1, 0, 0], [4, 5, 6, 7, 0, 1, 2]])
    assert ColumnMask.from_position_ids(ids).equal(ColumnMask.causal_document([[3, 2, 1, 1], [4, 3]]))
    windowed = ColumnMask.causal_document([[3, 2, 1, 1], [4, 3]], window=2)
    assert ColumnMask.from_position_ids(ids, window=2).equal(windowed)
    assert ColumnMask.from_position_ids(ids[:, :0]).seqlen_k == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ColumnMask.tree([-1, 0, -1, 0]), "pre-order: token 3 has parent 0"),
        (lambda: ColumnMask.share_question([[[2, 3]], [[4]]]), "same length"),
        (lambda: ColumnMask.share_question([[2, -3]]), "not be negative"),
        (lambda: ColumnMask.qk_sparse(9, [(0, 4), (3, 6)]), "disjoint"),
        (lambda: ColumnMask.prefix_document([4, 5], [1]), "one number per document"),
        (lambda: ColumnMask.padding([5], 4), "from 0 to seqlen"),
        (lambda: ColumnMask.padding([3], 4, side="top"), '"right" or "left"'),
        (lambda: ColumnMask.chunked_causal(4, chunk=0), "chunk must be at least 1"),
        (lambda: ColumnMask.from_cu_seqlens([0, 3, 2]), "does not fall"),
        (lambda: ColumnMask.from_cu_seqlens([0, 3], [0, 1, 2]), "1 documents, cu_seqlens_k has 2"),
        (lambda: ColumnMask.from_cu_seqlens([0, 3], causal=False, window=2), "window needs causal"),
        (lambda: ColumnMask.key_eviction(torch.zeros(3, 4)), r"\[batch, heads, sequence\]"),
        (lambda: ColumnMask.hash_sparse(torch.zeros(1, 1, 3), torch.zeros(1, 2, 3)), "one shape"),
        (lambda: ColumnMask.from_position_ids(torch.zeros(3)), r"int \[batch, sequence\]"),
        (lambda: ColumnMask.global_window(5, num_global=-1, left=1, right=1), "not be negative"),
    ],
)
def test_what_a_constructor_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
