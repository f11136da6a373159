"""Training that Paddle began goes on in torch: the same losses, to rounding."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from oarlock.checkpoint import CheckpointError, TensorSource, open_tensors, optimizer_tensors
from oarlock.checkpoint.paddle import adamw_states

from .test_recorded import RECORDED

FROM_PADDLE = "up.weight^T -> up.weight\ndown.weight^T -> down.weight\nhead.weight^T -> head.weight\n"


class Model(nn.Module):
    """That of record.py, with torch's Linear, [out, in]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.up = nn.Linear(6, 5)
        self.down = nn.Linear(5, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.down(functional.gelu(self.up(self.embedding(ids))))))


def sources(form: str) -> tuple[TensorSource, TensorSource]:
    """Parameters and states."""
    if form == "files":
        parameters = open_tensors(RECORDED / "model4.pdparams")
        return parameters, adamw_states(open_tensors(RECORDED / "optimizer4.pdopt"), parameters)
    source = open_tensors(RECORDED / form)
    return source, adamw_states(source)


@pytest.mark.parametrize("form", ["files", "flex-distcp", "flex-safetensors"])
def test_training_goes_on(form: str) -> None:
    expected = json.loads((RECORDED / "what_follows.json").read_text())
    parameters, states = sources(form)
    model = Model()
    parameters.load(model.state_dict(), aoa=FROM_PADDLE, strict="destination")
    assert model.get_buffer("steps").item() == 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=expected["rate"], weight_decay=0.1)
    for parameter in model.parameters():
        zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(3.0), **zeros}
    wanted = optimizer_tensors(optimizer, model.named_parameters())
    moments = {name: tensor for name, tensor in wanted.items() if not name.startswith("step/")}
    report = states.load(moments, aoa=FROM_PADDLE, slots=True)
    assert len(report.loaded) == 2 * len(list(model.parameters()))
    for step, loss in zip(range(3, 6), expected["losses"], strict=True):
        ids = torch.arange(8).view(2, 4) * (step + 2) % 7
        found = functional.cross_entropy(model(ids).flatten(0, 1), ((ids + 1) % 7).flatten())
        assert abs(found.item() - loss) < 2e-6 * loss  # float32, in another order of sums
        optimizer.zero_grad()
        found.backward()
        optimizer.step()


def test_master_weights_and_names() -> None:
    parameters = open_tensors(RECORDED / "half.pdparams")
    states = adamw_states(open_tensors(RECORDED / "half.pdopt"), parameters)
    names = [name for name in parameters.tensors if name != "steps"]
    assert set(states.tensors) == {f"{slot}/{name}" for slot in ("exp_avg", "exp_avg_sq", "master") for name in names}
    found = states.read()
    assert all(found[f"master/{name}"].dtype == torch.float32 for name in names)
    bits = parameters.read(names)
    assert all(torch.equal(found[f"master/{name}"].bfloat16(), tensor) for name, tensor in bits.items())


def test_what_does_not_belong_together() -> None:
    parameters, states = (open_tensors(RECORDED / name) for name in ("half.pdparams", "optimizer4.pdopt"))
    with pytest.raises(CheckpointError, match=r"half.pdparams has no parameter 'embedding_\d.w_0' for 'embedding"):
        adamw_states(states, parameters)
    with pytest.raises(CheckpointError, match=r"no states of Adam under the model's names; pass the .pdparams"):
        adamw_states(states)
    with pytest.raises(CheckpointError, match=r"model4.pdparams holds no states of Adam$"):
        adamw_states(open_tensors(RECORDED / "model4.pdparams"))
