"""Optimizer state under names: a resumed optimizer takes bitwise the same steps, and every mismatch is named."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oarlock.checkpoint import (
    load_checkpoint,
    load_optimizer,
    optimizer_state,
    optimizer_tensors,
    save_checkpoint,
)


class Odd(torch.optim.Optimizer):
    """State of every form: same shape as the parameter, other shape, scalar, number, string, nested, shared option."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "clock": torch.zeros(()), "betas": (0.9, 0.99), "name": None})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["clock"] += 1
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(m=torch.zeros_like(p), rows=torch.zeros(p.shape[:1]), count=0, kind="odd", half=None)
                    state["history"] = [torch.zeros_like(p), (1.5, {"inner": torch.zeros(2, dtype=torch.bfloat16)})]
                state["m"].add_(p.grad)
                state["rows"].add_(p.grad.flatten(1).sum(1) if p.ndim > 1 else p.grad)
                state["count"] += 1
                state["history"][0].copy_(p.grad)
                state["history"][1][1]["inner"] += group["clock"].bfloat16()
                factor = group["lr"] * state["count"] * float(state["history"][1][1]["inner"][0])
                p.data.add_(state["m"] + state["history"][0], alpha=-1e-3 * factor)


OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, amsgrad=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, history_size=3),
    "Odd": Odd,
}


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2, bias=False))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        x = torch.randn(6, 4, generator=generator)

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def groups_of(model: nn.Module, name: str) -> Any:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return list(model.parameters()) if name == "LBFGS" else [{"params": decayed}, {"params": rest, "lr": 0.003}]


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a != a)).all())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_optimizer_takes_the_same_steps(tmp_path: Path, name: str) -> None:
    model = build()
    optimizer = OPTIMIZERS[name](groups_of(model, name))
    train(model, optimizer, 3, seed=1)
    optimizer.param_groups[0]["lr"] *= 0.5  # as a schedule would
    path = save_checkpoint(
        tmp_path,
        3,
        tensors={"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer, model.named_parameters())},
        state={"optimizer": optimizer_state(optimizer, model.named_parameters())},
    )
    train(model, optimizer, 3, seed=2)

    checkpoint = load_checkpoint(path)
    resumed = build()
    resumed.load_state_dict(checkpoint.tensors("model"))
    other = OPTIMIZERS[name](groups_of(resumed, name))
    tensors = checkpoint.tensors("optimizer")
    load_optimizer(other, resumed.named_parameters(), tensors, checkpoint.state["optimizer"])
    train(resumed, other, 3, seed=2)
    assert all(same_bits(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert same_bits(other.state_dict(), optimizer.state_dict())
    assert same_bits(tensors, checkpoint.tensors("optimizer")), "the tensors given were copied, not adopted"


def adam_after_steps(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Tensor], dict[str, Any]]:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    train(model, optimizer, 2, seed=1)
    tensors = optimizer_tensors(optimizer, model.named_parameters())
    return model, optimizer, tensors, optimizer_state(optimizer, model.named_parameters())


def test_names() -> None:
    model, optimizer, tensors, state = adam_after_steps()
    names = [name for name, _ in model.named_parameters()]
    assert sorted(tensors) == sorted(f"{s}/{n}" for s in ("step", "exp_avg", "exp_avg_sq") for n in names)
    assert tensors["exp_avg/0.weight"].data_ptr() == optimizer.state[model[0].weight]["exp_avg"].data_ptr()
    assert state["slots"] == [
        {"names": {"step": [], "exp_avg": "parameter", "exp_avg_sq": "parameter"}, "parameters": names}
    ]
    assert state["groups"][0]["parameters"]["0.weight"] == [3, 4]
    assert state["groups"][0]["options"]["betas"] == {"tuple": [0.9, 0.999]}
    assert state["other"] == {}


def test_moments_are_never_cast() -> None:
    """torch's load_state_dict casts the moments to the dtype of the parameter."""
    model, optimizer, *_ = adam_after_steps()
    model.bfloat16()
    tensors = optimizer_tensors(optimizer, model.named_parameters())
    state = optimizer_state(optimizer, model.named_parameters())
    assert tensors["exp_avg/0.weight"].dtype == torch.float32
    other = torch.optim.AdamW(model.parameters(), lr=0.01)
    load_optimizer(other, model.named_parameters(), tensors, state)
    assert same_bits(dict(other.state), dict(optimizer.state))


def test_order_of_parameters_does_not_matter() -> None:
    model, optimizer, tensors, state = adam_after_steps()
    other = torch.optim.AdamW(reversed(list(model.parameters())), lr=0.5)
    load_optimizer(other, model.named_parameters(), tensors, state)
    assert all(same_bits(other.state[p], optimizer.state[p]) for p in model.parameters())
    assert other.param_groups[0]["lr"] == 0.01


def test_options_are_kept_if_asked() -> None:
    model, _, tensors, state = adam_after_steps()
    weights = [{"params": [p], "lr": 0.5} for p in model.parameters()]
    other = torch.optim.AdamW(weights)
    with pytest.raises(ValueError, match=r"groups hold other parameters than those saved; .* options=False"):
        load_optimizer(other, model.named_parameters(), tensors, state)
    load_optimizer(other, model.named_parameters(), tensors, state, options=False)
    assert {group["lr"] for group in other.param_groups} == {0.5}
    assert len(other.state) == len(weights)


def test_parameters_without_state() -> None:
    """A parameter that never had a gradient has no state, before and after; state that was there is replaced."""
    model = build()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1, seed=1)
    tensors = optimizer_tensors(optimizer, model.named_parameters())
    state = optimizer_state(optimizer, model.named_parameters())
    unfrozen, other, *_ = adam_after_steps()
    load_optimizer(other, unfrozen.named_parameters(), tensors, state)
    assert set(other.state) == set(unfrozen[1].parameters()) | set(unfrozen[2].parameters())
    fresh = torch.optim.AdamW(model.parameters())
    assert optimizer_tensors(fresh, model.named_parameters()) == {}


def test_tied_parameters_go_by_their_first_name() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    named = list(model.named_parameters(remove_duplicate=False))
    assert list(optimizer_tensors(optimizer, named)) == ["momentum_buffer/0.weight"]


def edit(**changes: Any) -> Any:
    def apply(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        for key, value in changes.items():
            if value is None:
                del tensors[key]
            else:
                tensors[key] = value

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit(**{"exp_avg/0.bias": None}), "optimizer tensor 'exp_avg/0.bias' is missing; there is"),
        (edit(**{"exp_avg/0.bias": torch.zeros(4)}), r"'exp_avg/0.bias' has shape \[4\], expected \[3\]"),
        (edit(**{"step/2.weight": torch.zeros(1)}), r"'step/2.weight' has shape \[1\], expected \[\]"),
        (edit(**{"exp_avg/9.bias": torch.zeros(3)}), "1 tensors belong to no state .* such as 'exp_avg/9.bias'"),
        (lambda t, s: s.update({"class": "SGD"}), "saved by SGD, this optimizer is AdamW"),
        (lambda t, s: s["groups"][0]["parameters"].pop("0.bias"), "saved state lacks 1 parameters, such as '0.bias'"),
        (
            lambda t, s: s["groups"][0]["parameters"].update({"0.bia": [3]}),
            r"optimizer lacks 1 .*'0.bia' \(it has '0.bias'",
        ),
        (
            lambda t, s: s["groups"][0]["parameters"].update({"0.bias": [4]}),
            r"'0.bias' has shape \[3\], .* is for \[4\]",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(change: Any, message: str) -> None:
    model, optimizer, tensors, state = adam_after_steps()
    before = copy.deepcopy(optimizer.state_dict())
    change(tensors, state)
    optimizer.param_groups[0]["lr"] = before["param_groups"][0]["lr"] = 7.0
    with pytest.raises(ValueError, match=message):
        load_optimizer(optimizer, model.named_parameters(), tensors, state)
    assert same_bits(optimizer.state_dict(), before)


def test_what_cannot_be_saved() -> None:
    model, optimizer, *_ = adam_after_steps()
    with pytest.raises(ValueError, match=r"no name for a parameter of shape \(3,\) in group 0"):
        optimizer_tensors(optimizer, [(n, p) for n, p in model.named_parameters() if n != "1.bias"])
    optimizer.state[model[0].bias]["lock"] = object()
    with pytest.raises(TypeError, match=r"lock/0.bias: a object cannot be saved without pickle"):
        optimizer_state(optimizer, model.named_parameters())
    del optimizer.state[model[0].bias]["lock"]
    optimizer.state["global"] = {}  # type: ignore[index]
    with pytest.raises(ValueError, match=r"keeps state for 'global', which is none of its parameters"):
        optimizer_tensors(optimizer, model.named_parameters())


def test_load_moves_to_the_device_of_the_parameter(device: torch.device) -> None:
    model, _, tensors, state = adam_after_steps()
    model.to(device)
    other = torch.optim.AdamW(model.parameters(), lr=0.01)
    load_optimizer(other, model.named_parameters(), tensors, state)
    values = other.state[model[0].weight]
    assert values["exp_avg"].device.type == device.type
    assert values["step"].device.type == "cpu"
    train_step = model(torch.randn(2, 4, device=device)).sum()
    train_step.backward()
    other.step()
