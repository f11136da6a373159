"""A run of compiled blocks is the run of eager ones to rounding; its checkpoints have the same names."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oarlock.checkpoint import open_tensors
from oarlock.compile import TooManyBreaks
from oarlock.models import Decoder
from oarlock.models.decoder import DecoderLayer
from oarlock.train import load_config, train
from tiny_run import recorded

pytestmark = pytest.mark.filterwarnings("ignore")  # of tracing itself: instances of Functions, .grad of non-leaves
OPTIONS = ("--train.steps", "4", "--checkpoint.every", "2", "--train.eval_every", "2")
COMPILED = ("--train.compile", "true", "--compile.backend", "aot_eager")


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in recorded(folder) if record["kind"] in ("train", "eval")]


@pytest.mark.parametrize(
    "more",
    [(), ("--train.activation_checkpointing", "true"), ("--model.family", "qwen3_moe", "--train.accumulation", "2")],
)
def test_losses_and_names_are_those_of_the_eager_run(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    train(load_config(tiny("eager"), [*OPTIONS, *more]))
    train(load_config(tiny("compiled"), [*OPTIONS, *more, *COMPILED, "--compile.max_breaks", "0"]))
    # Compiled blocks use other kernels; AdamW divides small gradients, so rounding grows with the steps.
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=2e-4)
    assert "compile   2 blocks, 0 graph breaks" in capsys.readouterr().err
    names = [
        set(open_tensors(tmp_path / run / "checkpoints" / "step-00000004").tensors) for run in ("eager", "compiled")
    ]
    assert names[0] == names[1]


def test_a_compiled_run_resumes_to_the_same_losses(tiny: Callable[..., Path], tmp_path: Path) -> None:
    options = [*OPTIONS, *COMPILED]
    train(load_config(tiny("run"), options))
    whole = recorded(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000004")
    assert train(load_config(tiny("run"), options), resume="auto").step == 4
    assert recorded(tmp_path / "run") == whole


def test_too_many_breaks_end_the_run_and_name_the_line(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = DecoderLayer.forward

    def broken(self: DecoderLayer, *args: object) -> object:
        out = forward(self, *args)  # type: ignore[arg-type]
        print(end="")  # a graph cannot print
        return out

    monkeypatch.setattr(DecoderLayer, "forward", broken)
    with pytest.raises(TooManyBreaks, match=r"graph breaks?, 0 are allowed[\s\S]*test_compile\.py:\d+"):
        train(load_config(tiny(), [*OPTIONS, *COMPILED, "--compile.max_breaks", "0"]))


@pytest.mark.parametrize(
    "other", [("--memory.budget", "60%"), ("--debug.errors", "true"), ("--memory.record", "m.html")]
)
def test_what_looks_at_single_operations_is_refused(tiny: Callable[..., Path], other: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"which compiled blocks do not have"):
        load_config(tiny(), ["--train.compile", "true", *other])


def test_the_model_is_a_decoder_still(tiny: Callable[..., Path], tmp_path: Path) -> None:
    train(load_config(tiny("compiled"), [*OPTIONS, *COMPILED]))
    from oarlock import models

    assert type(models.load(tmp_path / "compiled" / "hf")) is Decoder
