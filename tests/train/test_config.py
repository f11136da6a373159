"""The configuration: TOML in and out, overrides, and errors that name the nearest key."""

from pathlib import Path

import pytest

from oarlock.train.config import TrainConfig, config_from_dict, load_config


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_resolved_toml_reads_back_equal(tmp_path: Path) -> None:
    config = config_from_dict({"train": {"steps": 3, "sample": 'a "quoted"\nline é'}, "optimizer": {"epsilon": 1e-10}})
    assert load_config(written(tmp_path, config.to_toml())) == config


def test_overrides_beat_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[train]\nsteps = 3\n")
    config = load_config(path, ["--train.steps", "200", "--train.tensorboard=false", "--optimizer.beta1", "0.5"])
    assert (config.train.steps, config.train.tensorboard, config.optimizer.beta1) == (200, False, 0.5)


def test_integers_are_accepted_where_numbers_are_asked(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "[train]\nflops = 20\n")).train.flops == 20.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nstepz = 3\n", "unknown key train.stepz; did you mean train.steps"),
        ("[trane]\nsteps = 3\n", r"unknown section \[trane\]; did you mean train"),
        ("[train]\nsteps = 'x'\n", "train.steps = 'x': expected an integer"),
        ("[train]\nsteps = true\n", "expected an integer"),
        ("[train]\ndtype = 'fp16'\nsteps = 1\n", "one of fp32, bf16"),
        ("[train\n", "not valid TOML"),
        ("train = 3\n", "must be a section"),
        ("[train]\nsteps = 0\n", "nothing to do"),
        ("[train]\nsteps = 1\nbatch_size = 0\n", "train.batch_size = 0"),
    ],
)
def test_errors_name_the_key_and_the_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(written(tmp_path, text))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.toml"):
        load_config(tmp_path / "absent.toml")


def test_unknown_override_leaves_with_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load_config(written(tmp_path, "[train]\nsteps = 3\n"), ["--train.stepz", "4"])
    assert "--train.steps" in capsys.readouterr().err


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0"):
        load_config(written(tmp_path, "[train]\nsteps = 3\n"), ["--help"])
    text = capsys.readouterr().out
    for section, values in TrainConfig.to_dict(config_from_dict({"train": {"steps": 1}})).items():
        for key in values:
            assert f"--{section}.{key}" in text
