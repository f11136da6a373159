"""The configuration: TOML in and out, overrides, and errors that name the nearest key."""

from pathlib import Path

import pytest

from oarlock.train.config import config_from_dict, load_config, print_options


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.stepz", "4"], "command line: unknown key train.stepz; did you mean train.steps"),
        (["--trian.steps", "4"], r"unknown section \[trian\]; did you mean train"),
        (["--train.steps", "many"], "train.steps = 'many': expected an integer"),
        (["--train.steps"], "--train.steps needs a value"),
        (["--train.sample", "--train.steps", "4"], "--train.sample needs a value"),
        (["--train.tensorboard", "yes"], "expected true or false"),
        (["--model.family", "qwen33"], "did you mean qwen3"),
        (["other.toml"], "'other.toml' is no --section.key"),
        (["--step", "4"], r"unknown option --step; did you mean --train.steps\? \(oarlock train .* --options"),
        (["--bogus"], r"unknown option --bogus; \(oarlock train CONFIG.toml --options lists"),
        (["--train.zzz", "4"], r"unknown key train.zzz; known: .* \(oarlock train CONFIG.toml --options lists"),
        (["--train.batch_size=0"], "train.batch_size = 0: must be at least 1"),
    ],
)
def test_overrides_have_the_errors_of_the_file(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(written(tmp_path, "[train]\nsteps = 3\n"), words)


def test_overrides_may_complete_a_file(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, ""), ["--train.steps", "3", "--train.sample", "true", "--train.out=a=b"])
    assert (config.train.steps, config.train.sample, config.train.out) == (3, "true", "a=b")


def numbers() -> list[tuple[str, str]]:
    """Section and key of every number."""
    values = config_from_dict({"train": {"steps": 1}}).to_dict()
    return [(s, k) for s, part in values.items() for k, v in part.items() if type(v) in (int, float)]


@pytest.mark.parametrize("value", [-2, 2**70, float("nan"), float("inf")])
@pytest.mark.parametrize(("section", "key"), numbers())
def test_no_number_may_be_negative_endless_or_nothing(section: str, key: str, value: float) -> None:
    kind = type(config_from_dict({"train": {"steps": 1}}).to_dict()[section][key])
    if kind is float:
        value = -2.0 if value == -2 else float("inf") if isinstance(value, int) else value
    content = {"train": {"steps": 1}}
    content.setdefault(section, {})[key] = value
    with pytest.raises(ValueError, match=rf"{section}\.{key} = "):
        config_from_dict(content)


def test_a_number_beyond_every_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.flops"):
        load_config(written(tmp_path, f"[train]\nflops = 1{'0' * 400}\n"))


def test_what_a_text_may_hold_survives_the_saved_file(tmp_path: Path) -> None:
    config = config_from_dict({"train": {"steps": 3, "sample": "".join(map(chr, range(1, 160))) + "\\ \u2028 𝄞"}})
    assert load_config(written(tmp_path, config.to_toml())) == config


def test_files_of_other_editors_and_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/sam")
    config = load_config(written(tmp_path, "\ufeff[train]\r\nsteps = 3\r\nout = '~/runs'\r\n"))
    assert config.train.out == "/home/sam/runs"


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    print_options(config_from_dict({"train": {"steps": 1}}))
    text = capsys.readouterr().out
    for section, values in config_from_dict({"train": {"steps": 1}}).to_dict().items():
        for key in values:
            assert f"--{section}.{key}" in text
