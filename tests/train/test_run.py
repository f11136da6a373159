"""The folder of a run: nothing is lost that a run did not make, and a run goes on only from where it stopped."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from oarlock import checkpoint
from oarlock.checkpoint import list_checkpoints
from oarlock.train.config import load_config
from oarlock.train.loop import train
from oarlock.train.run import RunDirectory
from tiny_run import environment, recorded


def run(path: Path, *options: str, resume: str = "never") -> Path:
    return train(load_config(path, ["--train.eval_every", "0", *options]), resume=resume).directory


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["hf/notes.txt", "metrics.jsonl", "tokenizer/tokenizer.json"])
@pytest.mark.parametrize("resume", ["never", "auto"])
def test_files_of_somebody_else_stay(tiny: Callable[..., Path], name: str, resume: str) -> None:
    path = tiny()
    precious = path.with_suffix("") / name
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    with pytest.raises(ValueError, match=f"holds {name.partition('/')[0]} but no checkpoint"):
        run(path, resume=resume)
    assert content(path.with_suffix("")) == {precious: b"precious"}


def test_a_finished_model_without_checkpoints_is_not_trained_anew(tiny: Callable[..., Path]) -> None:
    path = tiny()
    folder = run(path, "--train.steps", "2")
    shutil.rmtree(folder / "checkpoints")
    before = content(folder)
    with pytest.raises(ValueError, match="holds hf but no checkpoint"):
        run(path, "--train.steps", "3", resume="auto")
    assert content(folder) == before


def test_a_run_killed_before_its_first_checkpoint_may_start_again(tiny: Callable[..., Path]) -> None:
    path = tiny()
    folder = run(path, "--train.steps", "1")
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "hf")
    run(path, "--train.steps", "2", "--model.hidden_size", "16", resume="auto")
    assert [r["step"] for r in recorded(folder) if r["kind"] == "train"] == [1, 2]


def test_the_folder_of_a_run_cannot_be_a_file(tiny: Callable[..., Path]) -> None:
    path = tiny()
    path.with_suffix("").write_text("a file")
    with pytest.raises(NotADirectoryError, match=r"train\.out = .* is a file"):
        run(path)


def test_two_processes_do_not_train_in_one_folder(tiny: Callable[..., Path]) -> None:
    """The lock is the kernel's: it ends with the process, however that ends."""
    path = tiny()
    folder = RunDirectory(path.with_suffix(""))
    code = (
        "import sys, pathlib; from oarlock.train.run import RunDirectory\n"
        "with RunDirectory(pathlib.Path(sys.argv[1])).claimed(): print('claimed', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(ValueError, match="another process is training in"):
            run(path)
        assert content(folder.path) == {}
    finally:
        other.kill()
        other.communicate()
    run(path, "--train.steps", "1")


def test_going_back_needs_the_later_checkpoints_out_of_the_way(tiny: Callable[..., Path]) -> None:
    """Otherwise the newest checkpoint, which `auto` takes, would be of the time line that was left."""
    path = tiny()
    folder = run(path, "--train.steps", "4")
    second, last = list_checkpoints(folder / "checkpoints")[0], list_checkpoints(folder / "checkpoints")[-1]
    before = content(folder)
    with pytest.raises(ValueError, match=f"later steps than {second.name}, up to {last.name}"):
        run(path, "--train.steps", "4", resume=str(second))
    assert content(folder) == before
    for later in list_checkpoints(folder / "checkpoints")[1:]:
        shutil.rmtree(later)
    run(path, "--train.steps", "5", resume=str(second))
    assert [r["step"] for r in recorded(folder) if r["kind"] == "train"] == [1, 2, 3, 4, 5]


def test_another_folder_may_continue_from_a_checkpoint(tiny: Callable[..., Path]) -> None:
    whole = run(tiny("whole"), "--train.steps", "5")
    begun = run(tiny("begun"), "--train.steps", "5")
    third = begun / "checkpoints" / "step-00000003"
    other = tiny("other")
    continued = run(other, "--train.steps", "5", resume=str(third))
    assert recorded(continued) == [r for r in recorded(whole) if r["step"] > 3]
    with pytest.raises(ValueError, match="has checkpoints of its own"):
        run(other, "--train.steps", "6", resume=str(third))


def test_a_checkpoint_of_something_else_is_named(tiny: Callable[..., Path], tmp_path: Path) -> None:
    begun = run(tiny("begun"), "--train.steps", "2") / "checkpoints" / "step-00000002"
    for options, message in (
        (["--model.hidden_size", "48"], "is of another model: embed_tokens.weight is of shape"),
        (["--model.family", "llama"], "is of another model: .*norm.weight is of shape .* there and absent here"),
        (["--optimizer.name", "adamw"], "optimizer"),
        (["--data.validation_share", "0.3"], "was trained on another text"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tiny("other"), "--train.steps", "3", *options, resume=str(begun))
    foreign = checkpoint.save_checkpoint(tmp_path / "foreign", 1, tensors={"model": {"a": torch.ones(2)}})
    with pytest.raises(ValueError, match="was not saved by `oarlock train`"):
        run(tiny("other"), "--train.steps", "3", resume=str(foreign))
    assert not (tmp_path / "other").exists()


def test_the_text_is_known_by_its_content(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """It may move while a run pauses, but not change, not even by a letter."""
    path = tiny()
    run(path, "--train.steps", "2")
    (tmp_path / "corpus").rename(tmp_path / "moved")
    run(path, "--train.steps", "3", "--data.corpus", str(tmp_path / "moved"), resume="auto")
    file = next((tmp_path / "moved").glob("*.txt"))
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(text[0], "z", 1), encoding="utf-8")
    with pytest.raises(ValueError, match="was trained on another text"):
        run(path, "--train.steps", "4", "--data.corpus", str(tmp_path / "moved"), resume="auto")


def test_a_finished_run_is_asked_for_a_larger_budget(tiny: Callable[..., Path]) -> None:
    path = tiny()
    small, large = (["--train.steps", "0", "--train.flops", flops] for flops in ("1e8", "2e8"))
    folder = run(path, *small)
    assert RunDirectory(folder).finished(load_config(path, small))
    assert not RunDirectory(folder).finished(load_config(path, large))
    first = json.loads((folder / "status.json").read_text())["step"]
    run(path, *large, resume="auto")
    assert json.loads((folder / "status.json").read_text())["step"] == pytest.approx(2 * first, rel=0.3)
    with pytest.raises(ValueError, match="has spent"):
        run(path, *small, resume="auto")
    with pytest.raises(ValueError, match=r"cannot resume: model\.hidden_size"):
        RunDirectory(folder).finished(load_config(path, [*large, "--model.hidden_size", "16"]))
