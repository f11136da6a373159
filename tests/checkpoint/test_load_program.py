"""Loading through a program, from stored pieces into shards: equal to the program's reference on whole tensors."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, save_checkpoint
from oarlock.checkpoint.aoa import AOA, AOAError, TensorSpec, materialize

SHAPES = {"q": (8, 6), "k": (4, 6), "v": (4, 6), "e.0.w": (4, 5), "e.1.w": (4, 5), "b": (12,), "t": (3, 4, 2)}
PROGRAMS = [
    "q, k, v -> qkv, axis=0",
    "q^T -> qt\nk^T -> kt",
    "q, k, v -> w, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0",
    "e.*.w -> stacked, stack=0",
    "e.0.w, e.1.w -> gate_up, axis=0\ngate_up -> gu, rearrange='(two i) h -> (i two) h, two=2'",
    "t -> u, permute='[2,0,1]'",
    "t -> u, reshape=[4,6]",
    "q[1:7:2, ::3] -> part",
    "b -> c, pad=17",
    "b -> c, add=1\nq -> qq, dtype='float64'",
]


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def in_pieces(tensor: torch.Tensor, dim: int, cut: int) -> Shard:
    """The same tensor as a process with two runs of it would hold it."""
    size = tensor.shape[dim]
    runs = [(cut, size), (0, cut)]
    local = torch.cat([tensor.narrow(dim, start, stop - start) for start, stop in runs], dim)
    return Shard.blocks(local, tensor.shape, dim, runs)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), text=st.sampled_from(PROGRAMS))
def test_any_program_from_pieces_into_shards(tmp_path_factory: pytest.TempPathFactory, data, text: str) -> None:
    whole = tensors()
    stored = {}
    for name, tensor in whole.items():
        dim = data.draw(st.integers(0, tensor.dim() - 1))
        stored[name] = in_pieces(tensor, dim, data.draw(st.integers(1, tensor.shape[dim] - 1)))
    path = save_checkpoint(tmp_path_factory.mktemp("c"), 1, tensors={"model": stored})
    program = AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in whole.items()}, None)
    destinations = {}
    for name, relation in program.tensors.items():
        box = []
        for size in relation.shape:
            start = data.draw(st.integers(0, size - 1))
            box.append((start, data.draw(st.integers(start + 1, size))))
        memory = torch.full([b - a for a, b in box], 99, dtype=relation.dtype)
        if memory.dim() > 1 and data.draw(st.booleans()):
            memory = memory.mT.contiguous().mT
        destinations[name] = Shard.box(memory, relation.shape, [a for a, _ in box])
    load_checkpoint(path, verify="read").load("model", destinations, aoa=text, strict="destination")

    def read(name: str, offset: tuple[int, ...], size: tuple[int, ...]) -> torch.Tensor:
        return whole[name][tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))]

    for name, relation in program.tensors.items():
        expected = materialize(relation, read)[destinations[name].pieces[0].box.slices]
        assert torch.equal(destinations[name].tensor, expected), name


def test_dequantised_shards(tmp_path: Path) -> None:
    """Blocks of 4 x 4 with scales in another tensor; the shard cuts through them."""
    data, scales = torch.randn(10, 9).to(torch.float8_e4m3fn), torch.rand(3, 3)
    full = data.float() * scales.repeat_interleave(4, 0)[:10].repeat_interleave(4, 1)[:, :9]
    path = save_checkpoint(tmp_path, 2, tensors={"model": {"w": in_pieces(data, 0, 5), "s": scales}})
    text = "w, s -> x, fp8_block(block=[4,4], dtype=float32)"
    shard = Shard.box(torch.zeros(5, 3), (10, 9), (3, 5))
    load_checkpoint(path, verify="read").load("model", {"x": shard}, aoa=text)
    assert torch.equal(shard.tensor, full[3:8, 5:8])


def test_optimizer_states_follow_the_geometry_but_not_the_casts(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    states = {f"{slot}/{p}": torch.randn(4, 6, generator=generator) for slot in ("exp_avg", "exp_avg_sq") for p in "ab"}
    states |= {f"step/{p}": torch.tensor(7.0) for p in "ab"}
    path = save_checkpoint(tmp_path, 1, tensors={"optimizer": states})
    text = "a, b -> t, axis=0\nt^T -> ab, dtype='bfloat16'"
    found = {f"{slot}/ab": torch.zeros(6, 8) for slot in ("exp_avg", "exp_avg_sq")} | {"step/ab": torch.tensor(0.0)}
    load_checkpoint(path).load("optimizer", found, aoa=text, slots=True)
    for slot in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(found[f"{slot}/ab"], torch.cat([states[f"{slot}/a"], states[f"{slot}/b"]]).T)
    assert found["step/ab"] == 7
    states["step/b"] = torch.tensor(9.0)
    path = save_checkpoint(tmp_path, 2, tensors={"optimizer": states})
    with pytest.raises(CheckpointError, match=r"step/ab is made of several, which differ \(a: 7.0, b: 9.0\)"):
        load_checkpoint(path).load("optimizer", found, aoa=text, slots=True)


def test_casts_of_states(tmp_path: Path) -> None:
    """Only where they are asked for, by the program (only=all) or by the caller; else nothing is written."""
    states = {"exp_avg/z": torch.ones(2), "exp_avg/a": torch.tensor([1.0, 2.0, 3.0]), "master/a": torch.ones(3)}
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"o": states}))

    def load(text: str, dtype: torch.dtype, size: int, cast: bool = False) -> list[float]:
        found = {
            "exp_avg/z": torch.zeros(2),
            "exp_avg/b": torch.zeros(size, dtype=dtype),
            "master/b": torch.zeros(size),
        }
        try:
            saved.load("o", found, aoa=text, slots=True, cast=cast)
        except CheckpointError:
            assert not any(tensor.any() for tensor in found.values())
            raise
        assert found["exp_avg/z"].all()
        return found["exp_avg/b"].tolist()

    assert load("a -> b, dtype=bfloat16", torch.float32, 3) == [1, 2, 3]
    assert load("a -> b, dtype=bfloat16, pad=4", torch.float32, 4) == [1, 2, 3, 0]
    assert load("a -> b, pad=4", torch.bfloat16, 4, cast=True) == [1, 2, 3, 0]
    assert load("a -> b, add=1", torch.float64, 3, cast=True) == [1, 2, 3]
    with pytest.raises(
        CheckpointError, match=r"exp_avg/b: the checkpoint has torch.float32, the destination torch.float64"
    ):
        load("a -> b, dtype=bfloat16", torch.float64, 3)
    with pytest.raises(AOAError, match=r"'b': torch has for float32 no cast to uint4"):
        load("a -> b", torch.uint4, 3, cast=True)
    own = {"exp_avg/z": torch.zeros(2), "exp_avg/b": torch.zeros(3, dtype=torch.bfloat16), "master/b": torch.zeros(3)}
    saved.load("o", own, aoa="a -> b, dtype=bfloat16, only=all ; z -> z", slots=True, cast=True)
    assert own["exp_avg/b"].tolist() == [1, 2, 3]
    path = save_checkpoint(tmp_path, 2, tensors={"o": {"exp_avg/a": states["exp_avg/a"]}})
    del own["exp_avg/z"], own["master/b"]
    load_checkpoint(path).load("o", own, aoa="a -> b, dtype=bfloat16, only=all", slots=True)
    assert own["exp_avg/b"].tolist() == [1, 2, 3]


def test_states_of_some_parameters_only(tmp_path: Path) -> None:
    """Each slot has its own parameters, as where an optimizer treats matrices and vectors differently; all statements
    are asked of all slots. Learning rates that are tensors belong to no slot."""
    states = {"momentum/w.0": torch.ones(2, 3), "momentum/w.1": torch.ones(2, 3) * 2, "exp_avg/n": torch.ones(2) * 3}
    scalars = {"step/n": torch.tensor(4.0), "step/w.0": torch.tensor(5.0), "group0.lr": torch.tensor(6.0)}
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"optimizer": states | scalars}))
    text = "w.$L^T -> v.$L ; n -> k ; q, n -> qn, axis=0 ; _ -> kept ; gone -> _"
    wanted = {"momentum/v.0": torch.zeros(3, 2), "momentum/v.1": torch.zeros(3, 2), "exp_avg/k": torch.zeros(2)}
    kept = {"exp_avg/kept": torch.zeros(1), "step/kept": torch.tensor(0.0)}
    numbers = {name: torch.tensor(0.0) for name in ("step/k", "step/v.0", "group0.lr")}
    report = saved.load("optimizer", wanted | kept | numbers, aoa=text, slots=True)
    assert [wanted[name].unique().tolist() for name in wanted] == [[1], [2], [3]]
    assert [number.item() for number in numbers.values()] == [4, 5, 6]
    assert sorted(report.kept) == sorted(kept)

    def attempt(message: str, error: type[ValueError | CheckpointError], change: dict) -> None:
        changed = {name: value for name, value in (wanted | kept | numbers | change).items() if value is not None}
        with pytest.raises(error, match=message):
            saved.load("optimizer", changed, aoa=text, slots=True)

    attempt("'v.0' is written, but it is no tensor of the destination", AOAError, {"momentum/v.0": None})
    attempt("'qn' has no source", AOAError, {"exp_avg/qn": torch.zeros(2)})
    attempt("of the checkpoint have no destination: group0.lr", CheckpointError, {"group0.lr": None})
    attempt("of the checkpoint have no destination: step/w.0", CheckpointError, {"step/v.0": None})
    attempt("group1.lr", CheckpointError, {"group1.lr": torch.tensor(0.0)})
    attempt("step/k: the checkpoint has torch.float32", CheckpointError, {"step/k": torch.tensor(0)})


def test_a_rank_needs_only_some_of_what_a_program_makes(tmp_path: Path) -> None:
    """One program serves all stages of a pipeline, each of which has its own layers."""
    stored = {f"h.{n}.w": torch.full((2, 3), float(n)) for n in range(4)} | {"e": torch.ones(2)}
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": stored}))
    text = "h.$L.w^T -> l.$L.w ; e -> e ; e -> head"
    stage = {f"l.{n}.w": torch.zeros(3, 2) for n in (2, 3)} | {"head": torch.zeros(2)}
    report = saved.load("m", stage, aoa=text, strict="destination")
    assert [tensor.unique().tolist() for tensor in stage.values()] == [[2], [3], [1]]
    assert sorted(report.unexpected) == ["h.0.w", "h.1.w"]
    with pytest.raises(AOAError, match=r"'l\.0\.w' is written, but it is no tensor of the destination"):
        saved.load("m", stage, aoa=text)
    with pytest.raises(AOAError, match=r"'l\.2\.v' has no source\n.*did you mean 'l\.2\.w'"):
        saved.load("m", {"l.2.v": torch.zeros(3, 2)}, aoa=text, strict="destination")


def test_nothing_is_written_when_the_program_does_not_fit(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, tensors={"model": tensors()})
    found = {"a": torch.zeros(8, 6), "x": torch.zeros(3)}
    for text, message in (("q -> a\nb -> x", "'x' would be"), ("q -> a\nqq -> x", "qq"), ("q -> a", "x")):
        with pytest.raises(AOAError, match=message):
            load_checkpoint(path).load("model", found, aoa=text, strict="destination")
        assert not found["a"].any()
    with pytest.raises(CheckpointError, match="of the checkpoint have no destination"):
        load_checkpoint(path).load("model", {"a": found["a"]}, aoa="q -> a")
    report = load_checkpoint(path).load("model", found, aoa="q -> a\n_ -> x", strict="destination")
    assert (report.loaded, report.kept) == (["a"], ["x"])
    assert torch.equal(found["a"], tensors()["q"])
