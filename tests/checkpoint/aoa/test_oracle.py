"""Random programs, as text, against an interpreter that runs the same statements with torch on index tensors.

Forward, reverse and queries of shards must agree element for element.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, TensorSpec
from oarlock.checkpoint.aoa.reverse import disjoint, injective

Tensors = dict[str, Tensor]
QUICK = settings(max_examples=200, deadline=None)


class Story:
    """A program that grows statement by statement, and what torch makes of it."""

    def __init__(self, source: Tensors) -> None:
        self.source = source
        self.lines: list[str] = []
        self.values = dict(source)

    def add(self, operands: str, names: list[str], attributes: str, results: list[Tensor]) -> None:
        self.lines.append(f"{operands} -> {', '.join(names)}{attributes}")
        self.values.update(zip(names, results, strict=True))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    source, first = {}, 1
    for index in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3)))
        source[f"m.{index}.w"] = torch.arange(first, first + math.prod(shape)).view(shape)
        first += math.prod(shape)
    story = Story(source)
    for number in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(sorted(story.values)))
        if story.values[name].dim() and 0 < story.values[name].numel() < 3000:
            draw(statements(story, name, f"t{number}"))
    return story


@st.composite
def statements(draw: st.DrawFn, story: Story, name: str, new: str) -> None:
    """Add one statement that reads `name` and writes `new` (or several names that begin so)."""
    x = story.values[name]
    dim = draw(st.integers(0, x.dim() - 1))
    axis = draw(st.sampled_from([dim, dim - x.dim()]))  # spelled from either end
    size = x.shape[dim]
    match draw(
        st.sampled_from(
            ["^T", "permute", "slice", "split", "unstack", "axis", "stack", "rearrange", "reshape", "group"]
        )
    ):
        case "^T":
            story.add(f"{name}^T", [new], "", [x.permute(*reversed(range(x.dim())))])
        case "permute":
            order = draw(st.permutations(range(x.dim())))
            story.add(name, [new], f", permute={list(order)}", [x.permute(*order)])
        case "slice":
            start, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 4))
            stop = draw(st.integers(start + 1, size))
            dots = ":, " * dim
            index = (slice(None),) * dim + (slice(start, stop, step),)
            story.add(f"{name}[{dots}{start - size}:{stop}:{step}]", [new], "", [x[index]])
        case "split":
            cut = draw(st.integers(0, size))
            parts = list(x.split([cut, size - cut], dim))
            sizes = draw(st.sampled_from([f"[{cut}, {size - cut}]", f"[{cut}, -1]"]))
            story.add(name, [f"{new}a", f"{new}b"], f", axis={axis}, sizes={sizes}", parts)
        case "unstack" if size > 1:
            story.add(name, [f"{new}_{k}" for k in range(size)], f", stack={axis}", list(x.unbind(dim)))
        case ("axis" | "stack" | "group") as how:
            fits = [other for other, y in story.values.items() if y.shape[:dim] == x.shape[:dim] and y.dim() == x.dim()]
            if how == "stack":
                others = [other for other in fits if story.values[other].shape == x.shape]
            else:
                others = [other for other in fits if story.values[other].shape[dim + 1 :] == x.shape[dim + 1 :]]
            names = [name, *draw(st.lists(st.sampled_from(others), min_size=1, max_size=3))]
            tensors = [story.values[other] for other in names]
            if how == "stack":
                story.add(", ".join(names), [new], f", stack={dim}", [torch.stack(tensors, dim)])
            elif how == "axis":
                story.add(", ".join(names), [new], f", axis={axis}", [torch.cat(tensors, dim)])
            else:
                joined = torch.cat(tensors, dim)
                story.add(
                    f"({', '.join(names)}, axis={axis})^T", [new], "", [joined.permute(*reversed(range(x.dim())))]
                )
        case "rearrange":
            width = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
            axes = [f"a{k}" for k in range(x.dim())]
            old, dealt = list(axes), list(axes)
            old[dim], dealt[dim] = "(p q)", "(q p)"
            pattern = f"{' '.join(old)} -> {' '.join(dealt)}, q={width}"
            order = list(range(x.dim() + 1))
            order[dim], order[dim + 1] = dim + 1, dim
            result = x.unflatten(dim, (size // width, width)).permute(order).flatten(dim, dim + 1)
            story.add(name, [new], f', rearrange="{pattern}"', [result])
        case "reshape":
            first = draw(st.sampled_from([d for d in range(1, x.numel() + 1) if x.numel() % d == 0]))
            story.add(name, [new], f", reshape=[{first}, -1]", [x.reshape(first, -1)])


def elements(*tensors: Tensor) -> set[int]:
    return {element for tensor in tensors for element in tensor.flatten().tolist()}


def compiled(story: Story, outputs: list[str] | None = None):
    specs = {name: TensorSpec.of(tensor) for name, tensor in story.source.items()}
    if outputs is None:
        return AOA(story.text).compile(specs)
    wanted = {name: TensorSpec.of(story.values[name]) for name in outputs}
    others = [
        line for name in story.values if name not in outputs and name not in story.source for line in [f"{name} -> _"]
    ]
    return AOA("\n".join([*story.lines, *others])).compile(specs, wanted)


@QUICK
@given(stories())
def test_all_tensors_of_a_program_are_what_torch_makes(story: Story) -> None:
    written = [name for name in story.values if name not in story.source]
    program = compiled(story, written) if written else compiled(story)
    made = program.apply(story.source)
    for name in made:
        assert torch.equal(made[name], story.values[name]), f"{name} of\n{story.text}"
        assert disjoint(
            list(program.tensors[name].blocks)
        )  # with the volumes, which compile compares: each element is written exactly once


@QUICK
@given(stories(), st.data())
def test_a_shard_is_filled_by_the_blocks_of_its_box(story: Story, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(story.values)))
    program = compiled(story, [name])
    expected = story.values[name]
    offset = [data.draw(st.integers(0, n)) for n in expected.shape]
    size = [data.draw(st.integers(0, n - o)) for o, n in zip(offset, expected.shape, strict=True)]
    shard = torch.full(tuple(size), -1)
    for block in program.query(name, offset, size):
        block.copy(story.source[str(block.source)], shard)
    box = tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))
    assert torch.equal(shard, expected[box])


@QUICK
@given(stories(), st.data())
def test_the_reverse_gives_back_what_the_destination_holds(story: Story, data: st.DataObject) -> None:
    """Two outputs may hold an element twice; the reverse must choose, and never write twice."""
    names = sorted(data.draw(st.sets(st.sampled_from(sorted(story.values)), min_size=1, max_size=2)))
    program = compiled(story, names)
    held = elements(*[story.values[name] for name in names])
    reached = [key for key, values in story.source.items() if elements(values) & held]
    if any(elements(story.source[key]) - held for key in reached):
        with pytest.raises(ValueError, match="cannot be recovered"):
            program.reverse()
        return
    backward = program.reverse()
    assert sorted(backward.tensors) == sorted(reached)
    made = backward.apply({name: story.values[name].contiguous() for name in names})
    for key, values in made.items():
        assert torch.equal(values, story.source[key]), story.text
        blocks = backward.tensors[key].blocks
        assert all(len(list(injective(block))) == 1 for block in blocks)
        assert disjoint(list(blocks))


@QUICK
@given(stories(), st.data())
def test_reversing_twice_is_the_program_itself(story: Story, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(story.values)))
    values = story.values[name]
    program = compiled(story, [name])
    injects = len(elements(values)) == values.numel() > 0
    if injects and all(elements(story.source[key]) <= elements(values) for key in program.sources(name)):
        again = program.reverse().reverse()
        assert torch.equal(again.apply(story.source)[name], values)
