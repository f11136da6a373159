"""Moving averages of the weights: the formula, and a run that keeps one through evaluation, resuming and export."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oarlock.checkpoint import load_checkpoint, open_tensors
from oarlock.cli.main import main
from oarlock.parallel import Mesh
from oarlock.train import load_config, train
from oarlock.train.build import decoder_config
from oarlock.train.ema import Start, WeightAverage
from oarlock.train.estimate import estimate
from process_group import run_ranks
from tiny_run import recorded

OPTIONS = ("--ema.decay", "0.6", "--train.steps", "4", "--checkpoint.every", "2", "--checkpoint.keep_last", "0")


def walk(steps: int) -> list[torch.Tensor]:
    """Weights after each step of a random walk, float64."""
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(steps, 5, dtype=torch.float64, generator=generator).cumsum(0))


@pytest.mark.parametrize("start", ["corrected", "weights", "warmup"])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_the_average_is_the_sum_that_it_says(start: Start, decay: float) -> None:
    model = nn.Linear(5, 1, bias=False).double()
    first = model.weight.detach().clone()[0]
    average = WeightAverage(model, decay, start)
    path = walk(20)
    for weights in path:
        with torch.no_grad():
            model.weight.copy_(weights[None])
        average.update()
    shares = [(1 - decay) * decay ** (20 - t) for t in range(1, 21)]
    if start == "corrected":
        expected = sum(share * w for share, w in zip(shares, path, strict=True)) / sum(shares)
    elif start == "weights":
        expected = sum(share * w for share, w in zip(shares, path, strict=True)) + decay**20 * first
    else:
        expected = first
        for t, w in enumerate(path, 1):
            d = min(decay, (1 + t) / (10 + t))
            expected = d * expected + (1 - d) * w
    assert torch.allclose(average.tensors()["weight"][0], expected, rtol=1e-12, atol=1e-12)
    average.reset()
    assert torch.equal(average.tensors()["weight"], model.weight)
    assert average.num_updates == 0


def test_nothing_of_the_first_weights_is_left() -> None:
    """Not even where they are no numbers, as in memory that is filled only after the average was made."""
    model = nn.Linear(3, 2).bfloat16()
    nn.init.constant_(model.weight, float("nan"))
    nn.init.constant_(model.bias, float("inf"))
    average = WeightAverage(model, 0.9)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    average.update()
    for name, tensor in average.tensors().items():
        assert torch.equal(tensor, model.get_parameter(name).float())


def test_a_model_without_parameters() -> None:
    """Such as a stage of a pipeline that only reshapes."""
    average = WeightAverage(nn.Flatten(), 0.9)
    average.update()
    average.update()
    with average.applied():
        assert average.tensors() == {}


def test_half_precision_is_averaged_in_float32() -> None:
    model = nn.Linear(4, 4).bfloat16()
    average = WeightAverage(model, 0.999, "weights")
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(0.01)
    average.update()
    moved = average.tensors()["weight"] - before.float()
    assert torch.allclose(moved, 0.001 * (model.weight - before).float(), rtol=1e-3)


def test_the_model_has_the_average_for_a_while() -> None:
    model = nn.Sequential(nn.Embedding(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 6, bias=False))
    model[2].weight = model[0].weight
    average = WeightAverage(model, 0.9, "weights")
    old = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    average.update()
    tensors = average.tensors()
    assert tensors.keys() == model.state_dict().keys()
    assert tensors["0.weight"] is tensors["2.weight"]
    assert tensors["1.running_mean"].data_ptr() == model[1].running_mean.data_ptr()
    own = model[0].weight.detach().clone()
    with average.applied():
        assert torch.allclose(model[2].weight, old + 0.1)
    assert torch.equal(model[0].weight, own)

    def fail() -> None:
        with average.applied():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(model[0].weight, own)


def test_decays_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got 1"):
        WeightAverage(nn.Linear(1, 1), 1)


def test_the_plan_of_a_run_counts_it(tiny: Callable[..., Path]) -> None:
    config = tiny("run")
    architecture = decoder_config(load_config(config).model, 300, 64)
    without, kept = (
        estimate(load_config(config, ["--ema.decay", decay]), architecture).memory for decay in ("0", "0.99")
    )
    assert kept.optimizer_state - without.optimizer_state == without.gradients


def test_a_run_goes_on_with_its_average(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    plain, whole, parted = (tiny(name) for name in ("plain", "whole", "parted"))
    train(load_config(plain, [*OPTIONS, "--ema.decay", "0"]))
    train(load_config(whole, [*OPTIONS]))
    middle = whole.with_suffix("") / "checkpoints" / "step-00000002"
    train(load_config(parted, [*OPTIONS]), resume=str(middle))

    end = {
        run: load_checkpoint(run.with_suffix("") / "checkpoints" / "step-00000004") for run in (plain, whole, parted)
    }
    assert "ema" not in end[plain].groups()
    averages, weights = end[whole].tensors("ema"), end[whole].tensors("model")
    assert list(averages) == list(weights)
    resumed = end[parted].tensors("ema")
    assert all(torch.equal(resumed[name], tensor) for name, tensor in averages.items())
    unaveraged = end[plain].tensors("model")
    assert all(torch.equal(unaveraged[name], tensor) for name, tensor in weights.items()), "training is as without"
    assert any(not torch.equal(averages[name], tensor) for name, tensor in weights.items())
    losses = {run: [r["loss"] for r in recorded(run.with_suffix("")) if r["kind"] == "eval"] for run in (plain, whole)}
    assert losses[plain][0] == losses[whole][0]
    assert losses[plain][-1] != losses[whole][-1], "the average is evaluated"

    exported = whole.with_suffix("") / "hf"
    converted = whole.parent / "converted"
    last = whole.with_suffix("") / "checkpoints" / "step-00000004"
    family = end[whole].path / "config.json"
    assert family.is_file()
    assert main(["convert", str(last), str(converted), "--group", "ema", "--family", "qwen3"]) == 0
    found, expected = open_tensors(converted).read(), open_tensors(exported).read()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert (converted / "tokenizer.json").read_bytes() == (exported / "tokenizer.json").read_bytes()
    assert main(["generate", str(converted), "the oar", "--max-new-tokens", "2"]) == 0
    capsys.readouterr()
    for folder in (last.parent, last.parent.parent):
        for command in (
            ["inspect"],
            ["inspect", "--group", "ema"],
            ["convert", str(converted / "x"), "--group", "ema"],
        ):
            assert main([command[0], str(folder), *command[1:]]) != 0
            assert f"did you mean the checkpoint {last}?" in capsys.readouterr().err
    assert main(["inspect", str(last), "--group", "ema"]) == 0
    shown = capsys.readouterr().out
    assert "ema:" in shown
    assert "optimizer" not in shown
    for command in (["inspect", str(exported)], ["convert", str(exported), str(converted / "x")]):
        assert main([*command, "--group", "ema"]) != 0
        assert "has no groups" in capsys.readouterr().err


def test_an_average_may_begin_later(tiny: Callable[..., Path]) -> None:
    first, second = tiny("first"), tiny("second")
    train(load_config(first, [*OPTIONS, "--ema.decay", "0"]))
    middle = first.with_suffix("") / "checkpoints" / "step-00000002"
    train(load_config(second, [*OPTIONS, "--ema.start", "weights", "--train.steps", "3"]), resume=str(middle))
    before = load_checkpoint(middle).tensors("model")
    saved = load_checkpoint(second.with_suffix("") / "checkpoints" / "step-00000003")
    after, average = saved.tensors("model"), saved.tensors("ema")
    assert saved.state["ema_updates"] == 1
    for name, tensor in average.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, 0.6 * before[name] + 0.4 * after[name], atol=1e-7), name


def on_two_ranks(config: str, middle: str) -> None:
    dist.init_process_group("gloo")
    options = [*OPTIONS, "--train.batch_size", "1", "--train.steps", "2", "--checkpoint.every", "0"]
    train(load_config(config, options), resume=middle, mesh=Mesh.build())
    dist.destroy_process_group()


def test_on_another_number_of_ranks(tiny: Callable[..., Path]) -> None:
    """The checkpoint of one rank is loaded by two and saved again as it is: the run is at its end."""
    first, second = tiny("first"), tiny("second")
    train(load_config(first, [*OPTIONS]))
    middle = first.with_suffix("") / "checkpoints" / "step-00000002"
    run_ranks(2, on_two_ranks, str(second), str(middle))
    expected = open_tensors(middle, "ema").read()
    exported = open_tensors(second.with_suffix("") / "hf").read()
    own = {t.double().sum().item() for t in expected.values() if t.dim() == 1}
    assert {t.double().sum().item() for t in exported.values() if t.dim() == 1} == own, "the norms' averages"
