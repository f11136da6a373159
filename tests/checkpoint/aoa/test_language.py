"""What the language says beyond Paddle's, construct by construct, each against torch on index tensors."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, AOAError, Relation, TensorSpec, Use
from oarlock.checkpoint.aoa.algebra import concat

Tensors = dict[str, Tensor]


def numbered(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    tensors, first = {}, 1
    for name, shape in shapes.items():
        tensors[name] = torch.arange(first, first + math.prod(shape), dtype=torch.float32).view(shape)
        first += math.prod(shape)
    return tensors


def run(
    program: str | Sequence[str], source: Tensors, destination: Sequence[str] | dict[str, Tensor] | None = None
) -> Tensors:
    specs = {name: TensorSpec.of(tensor) for name, tensor in source.items()}
    wanted = {k: TensorSpec.of(v) for k, v in destination.items()} if isinstance(destination, dict) else None
    return AOA(program).compile(specs, wanted).apply(source)


W = numbered({"w": (6, 4)})
w = W["w"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("w[2:5] -> x", w[2:5]),
        ("w[-2:] -> x", w[-2:]),
        ("w[1::2, ::3] -> x", w[1::2, ::3]),
        ("w[:, 1] -> x", w[:, 1]),
        ("w[-1, 2] -> x", w[-1, 2]),
        ("w[2:2] -> x", w[2:2]),
        ("w^T[1:]^T -> x", w[:, 1:]),
        ("w -> x, permute=[-1, 0]", w.T),
        ("w -> x, reshape=[2, -1, 2]", w.reshape(2, 6, 2)),
        ("w -> x, reshape=[24]", w.reshape(24)),
        ("w -> x, reshape=[4, 6], permute=[1, 0], reshape=[-1]", w.reshape(4, 6).T.reshape(-1)),
        ('w -> x, rearrange="(two i) h -> (i two) h, two=2"', w.view(2, 3, 4).transpose(0, 1).reshape(6, 4)),
        ('w -> x, rearrange="(e two i) h -> e i h two, two=2, e=1"', w.view(1, 2, 3, 4).permute(0, 2, 3, 1)),
        ("w -> x, rearrange='r c -> c 1 r'", w.T.reshape(4, 1, 6)),
        ("w -> x, rearrange='r c -> (r c)'", w.reshape(24)),
        ("w -> x, pad=8", torch.cat([w, torch.zeros(2, 4)])),
        ("w -> x, pad=5, axis=-1", torch.cat([w, torch.zeros(6, 1)], 1)),
        ("w -> x, pad=7, add=1, dtype=bfloat16", torch.cat([w + 1, torch.ones(1, 4)]).bfloat16()),
        ("w -> x, dtype=float8_e4m3fn, pad=7", torch.cat([w, torch.zeros(1, 4)]).to(torch.float8_e4m3fn)),
        ("w, w -> x, axis=-1", torch.cat([w, w], 1)),
        ("w, w -> x, stack=1", torch.stack([w, w], 1)),
        ("w -> x, stack=0", w[None]),
        ("(w[:2], w[4:], axis=0)^T -> x", torch.cat([w[:2], w[4:]]).T),
        ("((w, w, stack=0)[1], w, axis=0) -> x", torch.cat([w, w])),
        ("w -> x, dtype=float64, add=1, mul=0.5, dtype=bfloat16", ((w.double() + 1) * 0.5).bfloat16()),
        ("w -> x, dtype=float8_e4m3fn", w.to(torch.float8_e4m3fn)),
        ("w -> x, dtype=int64, add=-3", w.long() - 3),
        ("w -> x, dtype=complex64", w.to(torch.complex64)),
    ],
)  # fmt: skip
def test_one_tensor(program: str, expected: Tensor) -> None:
    found = run(program, W)["x"]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found.to(torch.complex128), expected.to(torch.complex128))


def test_splits() -> None:
    made = run("w -> a, b, c, axis=0, sizes=[3, -1, 1]", W)
    assert [made[name].shape[0] for name in "abc"] == [3, 2, 1]
    assert torch.equal(torch.cat([made["a"], made["b"], made["c"]]), w)
    made = run("w -> r.*, stack=1 where * in 0:4", W)
    assert all(torch.equal(made[f"r.{k}"], w[:, k]) for k in range(4))
    made = run("w -> p[0:3], axis=0", W)
    assert sorted(made) == ["p_0", "p_1", "p_2"]


def test_comments_blank_lines_continuations_and_semicolons() -> None:
    program = """
    # the first half
    w -> a, b,   # goes on
         axis=0

    a -> c ; b -> d  # two statements
    """
    made = run(program, W)
    assert torch.equal(made["c"], w[:3])
    assert torch.equal(made["d"], w[3:])


NAMES = [
    "0.weight",
    "a-b/c",
    "axis",
    "dtype",
    "x.axis.w",
    "moment.w_0",
    "ℓ.名",
    "fused",
    "where",
    "_a",
    "a_",
    "a:b (c)",
    "-> x",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_said(name: str) -> None:
    quoted = f'"{name}"' if {" ", ":", "("} & set(name) else name
    made = run(f"{quoted} -> new", {name: w})
    assert torch.equal(made["new"], w)
    made = run(f"w^T -> {quoted}", W)
    assert torch.equal(made[name], w.T)


def test_quotes_keep_a_dollar_a_star_and_a_macro_from_meaning_more() -> None:
    source = numbered({"$L": (1,), "e.*": (2,), "p": (3,)})
    made = run("""'$L' -> a ; "e.*" -> b ; p -> "fused_qkv" """, source)
    assert [made[name].numel() for name in ("a", "b", "fused_qkv")] == [1, 2, 3]


def test_an_array_and_a_slice_are_told_apart_by_what_exists() -> None:
    assert run("p[0:2] -> x", numbered({"p": (3,)}))["x"].tolist() == [1, 2]
    assert run("p[0:2] -> x, axis=0", numbered({"p_0": (1,), "p_1": (1,)}))["x"].tolist() == [1, 2]
    both = numbered({"p": (3,), "p_0": (1,), "p_1": (1,)})
    with pytest.raises(AOAError, match="both exist"):
        run("p[0:2] -> x, axis=0", both)
    assert run('"p"[0:2] -> x', both)["x"].tolist() == [1, 2]


class TestIds:
    def test_only_tuples_that_occur_are_taken(self) -> None:
        """Dense first layers, missing experts, ids of two digits, a layer with more experts than another."""
        names = ["l.1.e.0", "l.1.e.2", "l.10.e.0", "l.10.e.1", "l.10.e.11", "l.0.dense", "mtp.0.e.0"]
        source = numbered(dict.fromkeys(names, (1,)))
        made = run("l.$LAYER_ID.e.$EXPERT_ID -> n.$LAYER_ID.$EXPERT_ID", source)
        expected = {"n.1.0", "n.1.2", "n.10.0", "n.10.1", "n.10.11", "l.0.dense", "mtp.0.e.0"}
        assert set(made) == expected
        assert torch.equal(made["n.10.11"], source["l.10.e.11"])

    def test_a_star_beside_a_variable_lists_that_layers_experts(self) -> None:
        source = numbered({f"l.{i}.e.{j}": (1, 2) for i, j in [(0, 0), (1, 10), (1, 9), (1, 0)]})
        made = run("l.$L.e.*^T -> n.$L, axis=1", source)
        assert torch.equal(made["n.0"], source["l.0.e.0"].T)
        assert torch.equal(made["n.1"], torch.cat([source[f"l.1.e.{j}"].T for j in (0, 9, 10)], 1))
        backward = AOA("l.$L.e.*^T -> n.$L, axis=1").compile({k: TensorSpec.of(v) for k, v in source.items()}).reverse()
        assert all(torch.equal(value, source[name]) for name, value in backward.apply(made).items())

    def test_a_star_on_the_right_lists_the_destinations_names_of_the_layer(self) -> None:
        source = numbered({"n.0": (2, 2), "n.1": (3, 2)})
        wanted = {name: torch.zeros(1, 2) for name in ("l.0.e.0", "l.0.e.1", "l.1.e.2", "l.1.e.11", "l.1.e.3")}
        made = run("n.$L -> l.$L.e.*, axis=0", source, wanted)
        assert torch.equal(made["l.1.e.11"], source["n.1"][2:])
        assert torch.equal(made["l.1.e.3"], source["n.1"][1:2])

    def test_offsets(self) -> None:
        source = numbered({"a.1": (1,), "a.2": (1,)})
        assert set(run("a.$N -> b.$N-1", source)) == {"b.0", "b.1"}
        assert set(run("a.$N+1 -> b.$N", source)) == {"b.0", "b.1"}
        assert set(run("a.${N} -> b${N+7}_x", source)) == {"b8_x", "b9_x"}
        with pytest.raises(AOAError, match="1-2 is below 0"):
            run("a.$N -> b.$N-2", source)

    def test_where_a_variable_ends(self) -> None:
        """As in Paddle, LAYER_ID ends before a _; other names end where letters and digits do, or at a brace."""
        source = numbered({"a.1_w": (1,)})
        assert set(run("a.$LAYER_ID_w -> b.$LAYER_ID_v", source)) == {"b.1_v"}
        assert set(run("a.${X}_w -> b.${X}_v", source)) == {"b.1_v"}
        assert set(run("a.$LAYER_IDX -> b.$LAYER_IDX", numbered({"a.1": (1,)}))) == {"b.1"}

    def test_leading_zeros_stay(self) -> None:
        assert set(run("a.$N -> b.$N ; a.$N -> c.$N+1", numbered({"a.007": (1,)}))) == {"b.007", "c.008"}

    def test_where_chooses_ids(self) -> None:
        source = numbered({f"a.{n}": (1,) for n in range(6)})
        made = run("a.$N -> b.$N where N in 1:3\na.$N -> c.$N where N in [0, 5]", source)
        assert set(made) == {"b.1", "b.2", "c.0", "c.5", "a.3", "a.4"}
        with pytest.raises(AOAError, match=r"there is no tensor 'a\.6'"):
            run("a.$N -> b.$N where N in 5:7", source)

    def test_where_gives_ids_that_only_the_right_side_has(self) -> None:
        made = run("a.$N -> b.$N.$K where K in 0:2", numbered({"a.3": (1,), "a.4": (1,)}))
        assert set(made) == {"b.3.0", "b.3.1", "b.4.0", "b.4.1"}

    def test_a_variable_only_on_the_right_takes_the_destinations_ids(self) -> None:
        wanted = {f"l.{n}.mask": w for n in (0, 2)}
        made = run("w -> l.$L.mask", W, wanted)
        assert all(torch.equal(made[name], w) for name in wanted)
        wanted |= {f"l.{n}.freq": w for n in (0, 2)}
        specs = {name: TensorSpec.of(value) for name, value in wanted.items()}
        program = AOA("w -> l.$L.mask ; _ -> l.$L.freq").compile({"w": TensorSpec.of(w)}, specs)
        assert program.kept("l.0.freq")
        assert program.kept("l.2.freq")
        assert not program.kept("l.0.mask")

    def test_names_written_before_are_matched_too(self) -> None:
        source = numbered({"a.0": (2, 1), "a.1": (2, 1)})
        made = run("a.$N^T -> t.$N ; t.$N, t.$N -> b.$N, axis=0", source)
        assert torch.equal(made["b.1"], torch.cat([source["a.1"].T] * 2))

    def test_optional_statements_may_match_nothing(self) -> None:
        program = "a.$N -> b.$N, optional ; none -> c, optional ; a.* -> x, axis=0, optional ; w -> d"
        assert set(run(program, W)) == {"d"}
        assert set(run("w, none -> c, axis=0, optional", W)) == {"w"}  # nothing was read
        assert set(run("p[0:2] -> c, axis=0, optional", numbered({"p_0": (1,), "p_1": (1,)}))) == {"c"}


def test_a_list_is_taken_as_paddle_takes_it() -> None:
    """Statements need no separator, line ends are blanks (a comma that was forgotten between two strings)."""
    made = run(["w -> a, b, axis=0a ->\n x b^T -> y"], W)
    assert torch.equal(made["x"], w[:3])
    assert torch.equal(made["y"], w[3:].T)


def test_a_macro_of_ones_own() -> None:
    def mirrored(use: Use, *, axis: int = 0, times: int) -> list[Relation]:
        [tensor] = use.inputs
        return [concat([tensor] * times, axis)]

    program = AOA("w -> x, mirrored, times=3, dtype=float64\nw -> y, mirrored(times=2, axis=1)", {"mirrored": mirrored})
    made = program.compile({"w": TensorSpec.of(w)}).apply(W)
    assert torch.equal(made["x"], torch.cat([w] * 3).double())
    assert torch.equal(made["y"], torch.cat([w] * 2, 1))


def test_export_keeps_what_no_statement_used_up() -> None:
    source = numbered({"a": (1,), "b": (1,), "c": (1,), "d": (1,)})
    assert set(run("a -> t ; t -> x ; c -> _", source)) == {"x", "b", "d"}
    assert set(run("a -> a ; a -> x", source)) == {"a", "x", "b", "c", "d"}  # declared: kept although it is read
    assert set(run("a -> x ; a -> a", source)) == {"a", "x", "b", "c", "d"}


def test_what_was_not_read_is_reported() -> None:
    specs = {name: TensorSpec((2,), torch.float32) for name in ("a", "b", "c")}
    program = AOA("a -> x ; b -> _").compile(specs, {"x": specs["a"]})
    assert program.unread == {"b", "c"}
    assert program.dropped == {"b"}
    assert program.sources("x") == ("a",)


def test_missing_and_cast_can_be_allowed() -> None:
    source = {"a": TensorSpec((2,), torch.float32)}
    wanted = {"a": TensorSpec((2,), torch.bfloat16), "new": TensorSpec((3,), torch.float32)}
    with pytest.raises(AOAError, match=r"'new' has no source|add dtype=bfloat16"):
        AOA().compile(source, wanted)
    program = AOA().compile(source, wanted, cast=True, missing="keep")
    assert program.kept("new")
    assert program.apply({"a": torch.ones(2)})["a"].dtype == torch.bfloat16


def test_the_digest_tells_programs_apart() -> None:
    specs = {"a": TensorSpec((2, 2), torch.float32)}
    digests = {
        AOA(text).compile(source).digest
        for text in ("a -> b", "a^T -> b")
        for source in (specs, {"a": TensorSpec((2, 2), torch.float64)}, {"a": TensorSpec((2, 2), torch.float32, 2)})
    }
    assert len(digests) == 6
    program = AOA("a -> b").compile(specs)
    assert program.digest == AOA("a -> b").compile(specs).digest
    assert program.reverse().digest != program.digest


def test_explanations_name_statement_places_and_operations() -> None:
    source = {"l.0.g": TensorSpec((4, 6), torch.float32), "l.0.u": TensorSpec((4, 6), torch.float32)}
    text = "l.$L.g^T, l.$L.u^T -> n.$L, axis=0, dtype=bfloat16, pad=16"
    words = AOA(text).compile(source).explain("n.0")
    assert "n.0: 16 x 4, bfloat16, 3 blocks" in words
    assert f"line 1: {text}" in words
    assert "with $L=0: l.0.g, l.0.u -> n.0" in words
    assert "[6:12, 0:4] <- l.0.u[0:4, 0:6]" in words
    assert "axes in the order 1, 0" in words
    assert "cast from float32 to bfloat16" in words
    assert "[12:16, 0:4] <- filled with 0" in words
