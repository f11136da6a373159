"""Every error says which statement, where in it, how it came about, and what was probably meant."""

import pytest
import torch

from oarlock.checkpoint.aoa import AOA, AOAError, TensorSpec


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, torch.float32)


SOURCE = {
    "a": f32(4, 2),
    "b": f32(4, 2),
    "c": f32(3, 6),
    "i": TensorSpec((2,), torch.int64),
    "h": TensorSpec((4, 2), torch.float16),
}
LAYERS = {f"m.{n}.self_attn.{p}": f32(4, 4) for n in range(12) for p in "qkv"}
EXPERTS = {"g.0.0": f32(2), "g.1.0": f32(2), "g.1.1": f32(2), "u.0.0": f32(2), "u.1.0": f32(2)}


@pytest.mark.parametrize(
    ("program", "reason", "caret", "hint"),
    [
        # the text
        ("a -> x -> y", "expected ',' or the end of the line, found '-'", "-", ""),
        ("a ->", "expected the name of a tensor, found the end", "", "quotes"),
        ("a b -> x", "expected '->', found 'b'", "b", ""),
        ("a -> x y", "expected ',' or the end of the line, found 'y'", "y", ""),
        ("a ~ b", "expected '->', found '~'", "~", ""),
        ("a, -> x", "expected the name of a tensor, found '-'", "-", ""),
        ("a -> x, axes=0", "there is no attribute 'axes'", "axes", "'axis'"),
        ("a -> x, axis='k'", "axis is an integer", "axis='k'", ""),
        ("a -> x, permute=0", "permute is a list of integers", "permute=0", ""),
        ("a -> x, permute='[1 0]'", "expected a list of integers", "'[1 0]'", ""),
        ("a -> x, dtype=bfloat61", "has no dtype 'bfloat61'", "dtype=bfloat61", "'bfloat16'"),
        ("a -> x, dtype=float16, only=parm", "only is one of param, optim, all", "only=parm", ""),
        ("a -> x, axis=0, axis=1", "axis is given twice", "axis=1", ""),
        ("a -> x, fused_qvk, num_heads=3", "'num_heads' needs its macro", "num_heads=3", "'fused_qkv'"),
        ("a -> x, fused_ffn, num_heads=3", "'num_heads' is no argument of fused_ffn", "num_heads=3", ""),
        ("a -> x, fused_qkv", "fused_qkv needs num_heads=", "fused_qkv", ""),
        ("a -> x, axis=0, optionl", "expected an attribute such as axis=0", "optionl", "'optional'"),
        ("a -> x^T", "a target cannot be transposed", "^T", "a^T -> b"),
        ("a -> x[0]", "a target cannot be a part of a tensor", "x[0]", "name[a:b]"),
        ("a[::-1] -> x", "a step of -1", "1", ""),
        ("_ -> _", "says nothing", "_ -> _", ""),
        ("a -> x where L in 0:9999999999", "L ranges over 9999999999 numbers", "9", ""),
        ("a[0:9999999999] -> x", "the slice reaches outside axis 0", "a[0:9999999999]", ""),
        ("a -> x[0:9999999999], stack=0", "a target cannot be a part", "x[0:9999999999]", ""),
        ("(" * 999 + "a" + ")" * 999 + " -> x", "more than 12 parentheses in each other", "(", ""),
        ("a" + "^T" * 999 + " -> x", "more than 12 transpositions and slices of one operand", "T", ""),
        ("a -> x, add=1e999", "add is a finite number", "add=1e999", ""),
        ("a, b -> x, fp8_block(block=[])", "block [] does not fit", "fp8_block", ""),
        ("a -> _, axis=0", "takes no attributes", "axis=0", ""),
        ("e.*.$L.* -> x", "more than one *", "e.*.$L.*", "variables"),
        ("a$L$E -> x", "a variable touches a digit or another variable", "a$L$E", ""),
        ("a$ -> x", "a $ without the name of a variable", "$", ""),
        # names
        ("x -> y", "there is no tensor 'x'", "x", ""),
        ("aa -> y", "there is no tensor 'aa'", "aa", "'a'"),
        ("m.$L.q -> n.$L", "no tensor of the source matches", "m.$L.q", ""),
        ("m.*.q -> n, axis=0", "no tensor of the source matches 'm.*.q'", "m.*.q", ""),
        ("a -> n.*", "these names cannot be known: there is no destination", "n.*", "where * in 0:8"),
        ("a.$L -> x.$M", "no name on the left has all of $L, $M", "a.$L -> x.$M", "where M in 0:4"),
        ("a -> x where L in 0:2", "there is no $L here", "a -> x where L in 0:2", ""),
        ("a -> x\nb -> x", "'x' has already been written", "x", "by line 1: a -> x"),
        ("a -> _\na -> x", "'a' is dropped here, but line 2 reads it", "a", ""),
        ("a -> b\nb -> x", "'b' was written above, and is also a source tensor", "b", "temporary name"),
        ("_ -> x ; a -> x", "'x' is written here and kept by another statement", "x", ""),
        ("a -> x ; _ -> x", "'x' is kept here and written by another statement", "x", ""),
        # shapes and dtypes
        ("a, b -> x", "the left side makes 2, the right side names 1", "a, b -> x", "axis=K"),
        ("a, b -> x, y, axis=0", "2 tensors -> 2: a statement either joins or splits", "a, b -> x, y, axis=0", "$E"),
        ("a, c -> x, axis=1", "shapes (4, 2) and (3, 6) cannot be joined along axis 1", "axis=1", ""),
        ("a, h -> x, axis=1", "float32 and float16 cannot be joined", "axis=1", ""),
        ("a -> x, dtype=float8_e4m3fn, add=1", "torch has for float8_e4m3fn no arithmetic; cast first", "add=1", ""),
        ("a -> x, dtype=bool, mul=2", "torch has for bool no arithmetic; cast first", "mul=2", ""),
        ("a -> x, dtype=uint4", "torch has for float32 no cast to uint4", "dtype=uint4", ""),
        ("a, b -> x, axis=2", "axis 2 does not exist in a tensor of shape (4, 2)", "axis=2", ""),
        ("a -> x, permute=[0, 0]", "[0, 0] is no permutation of the 2 axes", "permute=[0, 0]", ""),
        ("a -> x, permute=[0]", "[0] is no permutation of the 2 axes", "permute=[0]", ""),
        ("a -> x, y, z, axis=0", "cannot be split into 3 equal parts; give sizes", "axis=0", ""),
        ("a -> x, y, axis=0, sizes=[1, 2]", "add up to 3", "axis=0", ""),
        ("a -> x, y, axis=0, sizes=[1, 2, 1]", "do not split an axis of size 4 for 2 targets", "axis=0", ""),
        ("a[5:9] -> x", "the slice reaches outside axis 0", "a[5:9]", ""),
        ("a[4] -> x", "index 4 is outside axis 0", "a[4]", ""),
        ("a[:, :, :] -> x", "3 slices for a tensor of shape (4, 2)", "a[:, :, :]", ""),
        ("a -> x, reshape=[3, -1]", "cannot be reshaped to [3, -1]", "reshape=[3, -1]", ""),
        ("a -> x, rearrange='(p q) r -> p q r'", "give sizes for all but one", "rearrange='(p q) r -> p q r'", ""),
        ("a -> x, rearrange='p q -> p'", "must name the same factors", "rearrange='p q -> p'", ""),
        ("a -> x, pad=3", "pad is the size to grow to", "pad=3", ""),
        ("i -> x, add=0.5", "0.5 would be rounded in int64", "add=0.5", ""),
        ("a -> x, src_dtype=float16, dst_dtype=float64", "src_dtype is float16", "dst_dtype=float64", ""),
        ("(a, b) -> x", "2 tensors in parentheses", "(a, b)", ""),
        ("a,b,b -> x, fused_qkv, num_heads=3, num_key_value_groups=2", "3 heads cannot be shared", "fused_qkv", ""),
        ("a -> x, y, z, fused_ffn", "fused_ffn is written gate, up -> w", "fused_ffn", ""),
    ],
)  # fmt: skip
def test_an_error_points_at_its_cause(program: str, reason: str, caret: str, hint: str) -> None:
    with pytest.raises(AOAError) as caught:
        AOA(program).compile(SOURCE)
    error = caught.value
    assert reason in error.reason
    assert hint in error.hint
    assert error.place is not None
    assert error.place.text[error.place.start : error.place.stop].strip() == caret or not caret
    text, line, carets = str(error).splitlines()[:3]
    assert text.startswith(f"AOA line {error.place.line}, column {error.place.column}: ")
    assert line.strip() in program
    assert line[4:][error.place.column - 1 :].startswith(caret)
    assert carets.strip() == "^" * max(1, len(caret))
    assert carets.index("^") == 3 + error.place.column


def test_the_chain_shows_the_ids_and_the_macro() -> None:
    with pytest.raises(AOAError) as caught:
        AOA("g.$L.$E, u.$L.$E -> w.$L.$E, axis=0").compile(EXPERTS)
    assert "there is no tensor 'u.1.1'" in caught.value.reason
    assert caught.value.chain == ("with $L=1, $E=1: g.1.1, u.1.1 -> w.1.1",)
    assert caught.value.hint == "did you mean 'u.1.0'?"
    with pytest.raises(AOAError) as caught:
        AOA("\n\nm.$L.self_attn.q -> n.$L, fused_ffn(axis=1)").compile(
            LAYERS, {f"n.{n}": TensorSpec((4, 4), torch.float32, num_shards=3) for n in range(12)}
        )
    assert caught.value.chain == ("with $L=0: m.0.self_attn.q -> n.0", "fused_ffn of (4, 4), shards 1 -> 3")
    assert str(caught.value).startswith("AOA line 3, column 27: axis 1 of shape (4, 2) cannot be divided into 3")


def test_a_near_miss_is_found_among_many_names() -> None:
    with pytest.raises(AOAError, match=r"did you mean 'm\.\d+\.self_attn\.q'"):
        AOA("m.$LAYER_ID.self_atn.q -> n.$LAYER_ID").compile(LAYERS)
    with pytest.raises(AOAError, match=r"did you mean 'm\.11\.self_attn\.q'"):
        AOA("m.11.self_attn.qq -> n").compile(LAYERS)


def test_the_destination_is_checked_as_a_whole() -> None:
    with pytest.raises(AOAError, match=r"'x' would be \(4, 2\), the destination has \(2, 4\)") as caught:
        AOA("a -> x").compile(SOURCE, {"x": f32(2, 4)})
    assert "a^T -> b" in caught.value.hint
    with pytest.raises(AOAError, match="'x' would be float32, the destination has bfloat16"):
        AOA("a -> x").compile(SOURCE, {"x": TensorSpec((4, 2), torch.bfloat16)})
    with pytest.raises(AOAError, match=r"'embed\.weigth' is written, but it is no tensor of the destination") as caught:
        AOA("a -> embed.weigth").compile(SOURCE, {"embed.weight": f32(4, 2)})
    assert "'embed.weight'" in caught.value.hint
    with pytest.raises(AOAError, match=r"the destination's 'x', and 1 more has no source"):
        AOA().compile(SOURCE, {"x": f32(4, 2), "y": f32(4, 2)})
    with pytest.raises(AOAError, match="the destination needs 'a', which is dropped here"):
        AOA("a -> _").compile(SOURCE, {"a": f32(4, 2)})
    with pytest.raises(AOAError, match="the destination has no tensor 'rotary'"):
        AOA("_ -> rotary").compile(SOURCE, {"a": f32(4, 2)})
    with pytest.raises(AOAError, match=r"no tensor of the destination matches 'e\.\*'"):
        AOA("a -> e.*, axis=0").compile(SOURCE, {"a": f32(4, 2)})


def test_in_a_list_the_statement_is_counted() -> None:
    with pytest.raises(AOAError, match="AOA statement 2, line 1, column 1: there is no tensor 'x'"):
        AOA(["a -> y", "x -> z"]).compile(SOURCE)
    with pytest.raises(AOAError, match="statement 2 of the list is empty"):
        AOA(["a -> y", "  "])


def test_queries_outside_and_unknown_keys() -> None:
    program = AOA("a -> x").compile(SOURCE, {"x": f32(4, 2), "b": f32(4, 2)})
    with pytest.raises(ValueError, match="is not inside shape"):
        program.query("x", (2, 0), (3, 2))
    with pytest.raises(ValueError, match="does not have the axes"):
        program.query("x", (2,), (2,))
    with pytest.raises(KeyError, match="no destination tensor 'bb'; did you mean 'b'"):
        program.query("bb", (0, 0), (1, 1))
    with pytest.raises(ValueError, match=r"'a' was compiled for shape \(4, 2\); it is missing"):
        program.apply({})
