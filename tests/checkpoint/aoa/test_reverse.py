"""Reversed programs, where the text would not tell: uneven parts, ties, losses, value operations."""

import pytest
import torch
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, Block, Program, TensorSpec, materialize
from oarlock.checkpoint.aoa.blocks import Atom
from oarlock.checkpoint.aoa.reverse import coordinates, disjoint, injective, meet, minus


def compiled(text: str, tensors: dict[str, Tensor], destination: dict[str, TensorSpec] | None = None) -> Program:
    return AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in tensors.items()}, destination)


def there_and_back(text: str, tensors: dict[str, Tensor], destination: dict[str, TensorSpec] | None = None) -> Program:
    """The reverse of a program, after checking that it undoes the program."""
    program = compiled(text, tensors, destination)
    backward = program.reverse()
    found = backward.apply(program.apply(tensors))
    for name, tensor in found.items():
        assert tensor.dtype == tensors[name].dtype
        torch.testing.assert_close(tensor, tensors[name], rtol=0, atol=0)
    return backward


def test_uneven_parts() -> None:
    """Grouped-query attention, 8:4:4 rows; and 4 + 2 rows that could also be 3 + 3."""
    tensors = {"q": torch.randn(8, 3), "k": torch.randn(4, 3), "v": torch.randn(4, 3)}
    backward = there_and_back("q, k, v -> w, axis=0", tensors)
    assert set(backward.tensors) == {"q", "k", "v"}
    there_and_back("a, b -> c, axis=0", {"a": torch.randn(4, 2), "b": torch.randn(2, 2)})
    there_and_back("w -> q, k, v, axis=0, sizes=[8, 4, 4]", {"w": torch.randn(16, 3)})


@pytest.mark.parametrize(("source_shards", "dest_shards"), [(1, 2), (2, 4), (4, 2), (3, 6)])
def test_fused_layouts_of_any_number_of_shards(source_shards: int, dest_shards: int) -> None:
    tensors = {"g": torch.randn(2, 24), "u": torch.randn(2, 24)}
    there_and_back("g, u -> w, fused_ffn", tensors, {"w": TensorSpec((2, 48), torch.float32, dest_shards)})
    spec = {"w": TensorSpec((2, 48), torch.float32, source_shards)}
    program = AOA("w -> v, fused_ffn").compile(spec, {"v": TensorSpec((2, 48), torch.float32, dest_shards)})
    w = torch.randn(2, 48)
    assert torch.equal(program.reverse().apply(program.apply({"w": w}))["w"], w)


def test_a_tie_says_what_was_chosen() -> None:
    e = torch.randn(3, 2)
    backward = there_and_back("e -> e ; e -> lm_head", {"e": e})
    assert backward.notes == ("'e' is read from 'e'; 'lm_head' holds the same elements",)
    assert backward.unread == {"lm_head"}
    assert "note: 'e' is read from 'e'" in backward.explain("e")
    # the exact copy is preferred to one that was rounded, whatever the order
    backward = there_and_back("e -> rounded, dtype=bfloat16 ; e -> exact", {"e": e})
    assert backward.sources("e") == ("exact",)


def test_copies_that_overlap_in_part() -> None:
    a = torch.arange(12.0).view(6, 2)
    backward = there_and_back("a[:4] -> b ; a[2:] -> c", {"a": a})
    assert sum(block.volume for block in backward.tensors["a"].blocks) == 12
    backward = there_and_back("a -> b ; a[::2]^T -> c", {"a": a})
    assert backward.sources("a") == ("b",)
    backward = there_and_back("a[1::2] -> b ; a, a -> c, axis=1", {"a": a})
    assert disjoint(list(backward.tensors["a"].blocks))


def test_what_is_lost_is_said() -> None:
    tensors = {"a": torch.randn(6, 2), "b": torch.randn(2), "c": torch.randn(2)}
    backward = there_and_back("b -> _", tensors, {"a": TensorSpec((6, 2), torch.float32)})
    assert backward.kept("b")
    assert backward.kept("c")
    with pytest.raises(ValueError, match="'a' cannot be recovered: 4 of its 12 elements are in no tensor"):
        compiled("a[2:] -> x", tensors).reverse()
    with pytest.raises(ValueError, match="multiplication by 0"):
        compiled("a -> x, mul=0", tensors).reverse()


def test_padding_reversed_is_a_slice() -> None:
    backward = there_and_back("a -> b, pad=8", {"a": torch.randn(6, 2)})
    assert backward.source["b"].shape == (8, 2)


def test_value_operations_are_undone_in_reverse_order() -> None:
    a = torch.arange(6.0).view(3, 2).bfloat16()
    there_and_back("a -> b, dtype=float32, add=1, mul=4, dtype=float64", {"a": a})
    backward = compiled("a -> b, dtype=float32, add=1, mul=4", {"a": a}).reverse()
    assert [str(op) for op in backward.tensors["a"].blocks[0].ops] == [
        "divided by 4",
        "minus 1",
        "cast from float32 to bfloat16",
    ]


def test_every_layout_there_and_back() -> None:
    text = """
    gate_up[:, 0::2] -> gate ; gate_up[:, 1::2] -> up       # interleaved, as gpt-oss stores it
    q^T, k^T, v^T -> qkv, fused_qkv, num_heads=6, num_key_value_groups=2
    conv -> conv2, rearrange="o i h w -> (h w i) o"
    l.$L.e.* -> experts.$L, stack=0
    """
    shapes = {"gate_up": (2, 10, 3), "q": (12, 5), "k": (4, 5), "v": (4, 5), "conv": (3, 2, 2, 2)}
    shapes |= {f"l.{i}.e.{j}": (2, 2) for i, j in [(0, 0), (0, 1), (1, 0), (1, 10), (1, 9)]}
    backward = there_and_back(text, {name: torch.randn(shape) for name, shape in shapes.items()})
    assert not backward.notes
    assert not backward.kept_keys


def test_shards_of_the_reverse() -> None:
    tensors = {f"e.{n}": torch.randn(4, 6) for n in range(3)}
    program = compiled("e.*^T -> w, stack=1", tensors)
    w = program.apply(tensors)
    backward = program.reverse()

    def read(key: str, offset: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
        return w[key][tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))]

    for rank in range(4):  # a row each
        shard = materialize(backward.tensors["e.1"], read, (rank, 0), (1, 6))
        assert torch.equal(shard, tensors["e.1"][rank : rank + 1])


def block(*atoms: Atom, base: tuple[int, ...]) -> Block:
    return Block("x", atoms, (0,) * len(base), base)


def test_progressions_that_meet_and_miss() -> None:
    even, odd = block(Atom(5, 0, 1, 0, 2), base=(0,)), block(Atom(5, 0, 1, 0, 2), base=(1,))
    thirds = block(Atom(3, 0, 1, 0, 3), base=(1,))  # 1 4 7
    rows = block(Atom(2, 0, 4, 0, 10), Atom(3, 0, 1, 0, 1), base=(20,))  # 20 21 22 30 31 32
    assert not meet(even, odd)
    assert meet(even, thirds)
    assert meet(odd, thirds)
    assert coordinates(rows, 0) == [range(20, 23), range(30, 33)]
    assert not meet(rows, block(Atom(3, 0, 1, 0, 3), base=(23,)))  # 23 26 29
    assert meet(rows, block(Atom(4, 0, 1, 0, 3), base=(23,)))  # ... 32
    assert sorted(part.dest_base[0] for part in minus(thirds, even)) == [1]
    overlapping = block(Atom(2, 0, 2, 0, 1), Atom(2, 0, 1, 0, 1), base=(0,))  # 0 1 1 2
    assert len(list(injective(overlapping))) == 2
