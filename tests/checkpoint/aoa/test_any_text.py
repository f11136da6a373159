"""Whatever is typed, the answer is a program or an AOAError whose caret lies in the text; never another exception."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.checkpoint.aoa import AOA, AOAError, Program, TensorSpec

SPLIT = """
    a b x e.* m.$L.w n.$L+1 $L-1 p p_0 step none _ -> -> -> , , ; ( ) [ ] : = ^T 0 1 -1 2.5 $ ${L} ~ axis where in
    axis=0 axis=-1 stack=0 sizes=[1,-1] permute=[1,0] permute='[]' reshape=[-1] rearrange='' pad=7 only=all
    dtype=bfloat16 dtype='x' src_dtype=float32 dst_dtype=float64 add=1 mul=0 optional [0:2] [-1] (axis=0)
    fused_qkv fused_ffn num_heads=2 num_key_value_groups=1 fp8_block block=2 block='z' mxfp4
"""
BLANKS = ["'q r'", "\n", "[::2, 1:]", "rearrange='(i j) k -> i j k, i=2'", "where L in 0:2", "where * in [0]", "# c"]
WORDS = [*SPLIT.split(), *BLANKS]
SHAPES = {
    "a": (4, 2), "b": (4, 2), "p": (6,), "p_1": (2,), "e.0": (1, 2), "e.10": (1, 2), "m.0.w": (4, 4), "m.1.w": (2, 4),
    "step": (), "none": (0, 2), "q r": (2,),
}  # fmt: skip
SOURCE = {name: TensorSpec(shape, torch.float32) for name, shape in SHAPES.items()}
DESTINATION = {"x": SOURCE["a"], "a": SOURCE["a"], "e.0": SOURCE["e.0"]}


def compiled_or_refused(program: str | list[str], destination: dict[str, TensorSpec] | None) -> Program | AOAError:
    try:
        return AOA(program).compile(SOURCE, destination)
    except AOAError as error:
        return error


def check(program: str | list[str]) -> None:
    for destination in (None, DESTINATION):
        compiled = compiled_or_refused(program, destination)
        if isinstance(compiled, AOAError):
            place = compiled.place
            assert place is None or 0 <= place.start <= place.stop <= len(place.text)
            continue
        for name, relation in compiled.tensors.items():
            assert sum(block.volume for block in relation.blocks) == relation.num_elements
            assert name in compiled.explain(name)
            compiled.query(name, (0,) * len(relation.shape), relation.shape)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=14), st.sampled_from([" ", ""]))
def test_words_in_any_order(words: list[str], between: str) -> None:
    check(between.join(words))
    check([between.join(words)])


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["a", "a, b", "e.*", "m.$L.w", "p[0:2]", "(a, b, axis=0)", "step", "none", "_"]), st.data())
def test_statements_with_any_attributes(left: str, data: st.DataObject) -> None:
    right = data.draw(st.sampled_from(["x", "x, y", "x.$L", "e.*", "p[0:2]", "_", "a"]))
    attributes = data.draw(
        st.lists(st.sampled_from([word for word in WORDS if "=" in word or "_" in word]), max_size=4)
    )
    check(", ".join([f"{left} -> {right}", *attributes]))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_characters(text: str) -> None:
    check(text)
