"""The worked examples of the language, in the order of docs/aoa.md: what Paddle means by them is what they mean here.

Each runs on index tensors and is compared with torch. Where Paddle's meaning is a fault, the example is an error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, AOAError, TensorSpec

Tensors = dict[str, Tensor]


def numbered(**shapes: tuple[int, ...]) -> Tensors:
    """Tensors of different float32 numbers; `__` in a name is a dot."""
    tensors, first = {}, 1
    for name, shape in shapes.items():
        values = torch.arange(first, first + math.prod(shape), dtype=torch.float32).view(shape)
        tensors[name.replace("__", ".")] = values
        first += values.numel()
    return tensors


def run(
    program: str | Sequence[str],
    source: Tensors,
    destination: dict[str, TensorSpec] | None = None,
    source_shards: int = 1,
) -> Tensors:
    """Compile for the shapes of `source` and read everything."""
    specs = {name: TensorSpec.of(tensor, source_shards) for name, tensor in source.items()}
    return AOA(program).compile(specs, destination).apply(source)


@dataclass
class Example:
    number: int
    program: str
    source: Tensors
    expected: Callable[[Tensors], Tensors]
    destination: dict[str, TensorSpec] | None = None
    source_shards: int = 1


def f32(*shape: int, num_shards: int = 1) -> TensorSpec:
    return TensorSpec(shape, torch.float32, num_shards)


def qkv_by_group(t: Tensors, dim: int) -> Tensor:
    """q0 q1 k0 v0 q2 q3 k1 v1 for four heads and two key-value heads, written out."""
    q, k, v = t["q"].chunk(4, dim), t["k"].chunk(2, dim), t["v"].chunk(2, dim)
    return torch.cat([q[0], q[1], k[0], v[0], q[2], q[3], k[1], v[1]], dim)


def ungrouped(w: Tensor) -> Tensors:
    q0, q1, k0, v0, q2, q3, k1, v1 = w.chunk(8, 1)
    return {"q": torch.cat([q0, q1, q2, q3], 1), "k": torch.cat([k0, k1], 1), "v": torch.cat([v0, v1], 1)}


HEADS = "num_heads=4, num_key_value_groups=2"
EXAMPLES = [
    Example(1, "m.norm.w -> norm.w", numbered(m__norm__w=(3,)), lambda t: {"norm.w": t["m.norm.w"]}),
    Example(2, "", numbered(a=(3, 2)), lambda t: {"a": t["a"]}, {"a": f32(3, 2)}),
    Example(5, "a^T -> b", numbered(a=(4, 2)), lambda t: {"b": t["a"].T}),
    Example(6, "a^T -> b", numbered(a=(4, 2, 3)), lambda t: {"b": t["a"].permute(2, 1, 0)}),
    Example(8, "a -> b, permute='[1,2,0]'", numbered(a=(2, 3, 4)), lambda t: {"b": t["a"].permute(1, 2, 0)}),
    Example(9, "a -> b, permute='[]'", numbered(a=(2, 3, 4)), lambda t: {"b": t["a"].permute(2, 1, 0)}),
    Example(10, "a,b -> c, axis=1", numbered(a=(2, 3), b=(2, 1)), lambda t: {"c": torch.cat([t["a"], t["b"]], 1)}),
    Example(11, "a -> b,c, axis=0", numbered(a=(4, 2)), lambda t: {"b": t["a"][:2], "c": t["a"][2:]}),
    Example(13, "a -> b, dtype='bfloat16'", numbered(a=(4,)), lambda t: {"b": t["a"].bfloat16()}),
    Example(
        14, "a -> b, src_dtype='float32', dst_dtype='bfloat16'", numbered(a=(4,)), lambda t: {"b": t["a"].bfloat16()}
    ),
    Example(15, "a^T -> b, dtype='float64'", numbered(a=(4, 2)), lambda t: {"b": t["a"].T.double()}),
    Example(
        16, "a^T -> b\nb -> b, dtype='bfloat16'", numbered(a=(4, 2)), lambda t: {"b": t["a"].T.bfloat16()},
        {"b": TensorSpec((2, 4), torch.bfloat16)},
    ),
    Example(
        17, "a -> t\nb -> a\nt -> b", numbered(a=(2,), b=(2,)), lambda t: {"a": t["b"], "b": t["a"]},
        {"a": f32(2), "b": f32(2)},
    ),
    Example(
        18, "_ -> rotary_emb.inv_freq", numbered(a=(2,)), lambda t: {"a": t["a"]},
        {"a": f32(2), "rotary_emb.inv_freq": f32(4)},
    ),
    Example(19, "lm_head.weight -> _", numbered(a=(2,), lm_head__weight=(3,)), lambda t: {"a": t["a"]}),
    Example(
        20, "e -> e\ne -> lm_head.weight", numbered(e=(3, 2)), lambda t: {"e": t["e"], "lm_head.weight": t["e"]},
        {"e": f32(3, 2), "lm_head.weight": f32(3, 2)},
    ),
    Example(
        21, "m.layers.$LAYER_ID.w^T -> n.l.$LAYER_ID.w", numbered(m__layers__0__w=(2, 3), m__layers__3__w=(1, 2)),
        lambda t: {"n.l.0.w": t["m.layers.0.w"].T, "n.l.3.w": t["m.layers.3.w"].T},
    ),
    Example(
        22, "m.$LAYER_ID.e.$EXPERT_ID.w -> n.$LAYER_ID.x.$EXPERT_ID.w",
        numbered(**{f"m__{i}__e__{j}__w": (2,) for i in range(2) for j in range(3)}),
        lambda t: {f"n.{i}.x.{j}.w": t[f"m.{i}.e.{j}.w"] for i in range(2) for j in range(3)},
    ),
    Example(
        23, "e.*.w -> stacked, axis=0", numbered(**{f"e__{i}__w": (1, 2) for i in (10, 2, 0, 9, 1)}),
        lambda t: {"stacked": torch.cat([t[f"e.{i}.w"] for i in (0, 1, 2, 9, 10)])},
    ),
    Example(
        24, "stacked -> e.*.w, axis=0", numbered(stacked=(6, 2)),
        lambda t: {f"e.{i}.w": t["stacked"][2 * j : 2 * j + 2] for j, i in enumerate((0, 9, 10))},
        {f"e.{i}.w": f32(2, 2) for i in (10, 0, 9)},
    ),
    Example(
        25, "m.$LAYER_ID_OFFSET.w -> n.$LAYER_ID_OFFSET.w", numbered(m__1__w=(2,), m__2__w=(2,)),
        lambda t: {"n.0.w": t["m.1.w"], "n.1.w": t["m.2.w"]},
    ),
    Example(
        26, "p[0:3] -> c, axis=0", numbered(p_0=(1, 2), p_1=(2, 2), p_2=(1, 2)),
        lambda t: {"c": torch.cat([t["p_0"], t["p_1"], t["p_2"]])},
    ),
    Example(
        27, f"q,k,v -> w, fused_qkv, {HEADS}", numbered(q=(3, 8), k=(3, 4), v=(3, 4)),
        lambda t: {"w": qkv_by_group(t, 1)},
    ),
    Example(28, f"w -> q,k,v, fused_qkv, {HEADS}", numbered(w=(3, 16)), lambda t: ungrouped(t["w"])),
    Example(
        29, f"q,k,v -> w, fused_qkv, {HEADS}, axis=0", numbered(q=(8,), k=(4,), v=(4,)),
        lambda t: {"w": qkv_by_group(t, 0)},
    ),
    Example(
        30, f"w -> v, fused_qkv_old, {HEADS}", numbered(w=(3, 8)),
        lambda t: {"v": t["w"][:, [0, 1, 4, 6, 2, 3, 5, 7]]}, {"v": f32(3, 8, num_shards=2)},
    ),
    Example(
        31, "g,u -> v, fused_ffn", numbered(g=(2, 4), u=(2, 4)),
        lambda t: {"v": torch.cat([t["g"][:, :2], t["u"][:, :2], t["g"][:, 2:], t["u"][:, 2:]], 1)},
        {"v": f32(2, 8, num_shards=2)},
    ),
    Example(
        32, "w -> v, fused_ffn", numbered(w=(1, 8)),  # g0 g1 u0 u1 g2 g3 u2 u3
        lambda t: {"v": t["w"][:, [0, 2, 1, 3, 4, 6, 5, 7]]}, {"v": f32(1, 8, num_shards=4)}, source_shards=2,
    ),
    Example(
        33, "w -> g,u, fused_ffn", numbered(w=(1, 8)),
        lambda t: {"g": t["w"][:, [0, 1, 4, 5]], "u": t["w"][:, [2, 3, 6, 7]]}, source_shards=2,
    ),
    Example(
        34, f"q^T,k^T,v^T -> w, fused_qkv, {HEADS}", numbered(q=(8, 3), k=(4, 3), v=(4, 3)),
        lambda t: {"w": qkv_by_group({name: tensor.T for name, tensor in t.items()}, 1)},
    ),
    Example(
        35, "l.$LAYER_ID.mlp.gate.weight^T -> l.$LAYER_ID.gate.weight, dtype='float64'",
        numbered(l__0__mlp__gate__weight=(4, 2)), lambda t: {"l.0.gate.weight": t["l.0.mlp.gate.weight"].T.double()},
    ),
]  # fmt: skip

FAULTS = [
    # number, program, source, destination, what the error says
    (3, "a -> b", numbered(a=(4, 2)), {"b": f32(2, 4)}, r"'b' would be \(4, 2\), the destination has \(2, 4\)"),
    (4, "x -> b", numbered(a=(4, 2)), {"b": f32(2, 4)}, "there is no tensor 'x'"),
    (7, "a -> b^T", numbered(a=(4, 2)), None, "a target cannot be transposed"),
    (12, "a -> b,c,d, axis=0", numbered(a=(4, 2)), None, "cannot be split into 3 equal parts"),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.number))
def test_an_example_means_what_torch_makes_of_it(example: Example) -> None:
    found = run(example.program, example.source, example.destination, example.source_shards)
    expected = example.expected(example.source)
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.number))
def test_an_example_means_the_same_in_a_list(example: Example) -> None:
    """Paddle's form: one string per statement."""
    lines = example.program.splitlines()
    found = run(lines, example.source, example.destination, example.source_shards)
    for name, tensor in example.expected(example.source).items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("number", "program", "source", "destination", "message"), FAULTS, ids=lambda value: str(value)[:2]
)
def test_an_example_that_is_an_error(
    number: int, program: str, source: Tensors, destination: dict[str, TensorSpec] | None, message: str
) -> None:
    with pytest.raises(AOAError, match=message):
        run(program, source, destination)


def test_every_example_is_here() -> None:
    assert sorted([example.number for example in EXAMPLES] + [fault[0] for fault in FAULTS]) == list(range(1, 36))


@pytest.mark.parametrize(
    "example", [example for example in EXAMPLES if example.number not in (2, 18, 19, 20)], ids=lambda e: str(e.number)
)
def test_an_example_reversed_gives_back_its_source(example: Example) -> None:
    """The transposes and layouts are undone exactly; the numbers are small enough for bfloat16."""
    specs = {name: TensorSpec.of(tensor, example.source_shards) for name, tensor in example.source.items()}
    backward = AOA(example.program).compile(specs, example.destination).reverse()
    made = run(example.program, example.source, example.destination, example.source_shards)
    back = backward.apply(made)
    for name, tensor in example.source.items():
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0)
