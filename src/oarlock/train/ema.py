"""Exponential moving averages of the weights: smoother than the last step's, often better to evaluate and to export."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

Start = Literal["corrected", "weights", "warmup"]
"""How the first steps count; see WeightAverage."""


class WeightAverage:
    """a <- d_t a + (1 - d_t) w after every optimizer step t = 1, 2, ..., for every parameter w.

    With the decay d, d_t is
        `corrected`  d (1 - d^(t-1)) / (1 - d^t): then a = Σ_s d^(t-s) w_s / Σ_s d^(t-s), the mean of the weights so far
                     with weights that fall off, and nothing of those that training started from;
        `weights`    d: the average begins as the weights that training starts from;
        `warmup`     min(d, (1 + t) / (10 + t)): over the last tenth or so of the steps, while these are few.

    Args:
        model: its parameters are averaged; averages of 16-bit ones are float32.
        decay: d in [0, 1).
        start: see above.

    Raises:
        ValueError: `decay` is not in [0, 1).

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the correction is Adam's
    (Kingma and Ba, 2015), the warm-up that of TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, model: nn.Module, decay: float, start: Start = "corrected") -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of an average must lie in [0, 1), got {decay}")
        self.decay, self.start = decay, start
        self.num_updates = 0
        self._model = model
        self._parameters = list(model.parameters())
        self._averages = [
            p.detach().to(torch.float32 if p.dtype.itemsize < 4 else p.dtype, copy=True) for p in self._parameters
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after an optimizer step."""
        self.num_updates += 1
        weight = 1 - self._decay(self.num_updates)
        weights = [p.detach().to(a.dtype) for p, a in zip(self._parameters, self._averages, strict=True)]
        if weight == 1:  # by the formula 0 a + w is w; in floating point what is not finite in `a` would stay
            _copy(weights, self._averages)
        else:
            _lerp(self._averages, weights, weight)

    def tensors(self) -> dict[str, Tensor]:
        """The model's state with the averages in the place of the parameters; what is no parameter is as it is."""
        averages = {id(p): a for p, a in zip(self._parameters, self._averages, strict=True)}
        return {name: averages.get(id(value), value.detach()) for name, value in _state(self._model)}

    def reset(self) -> None:
        """Begin anew with the weights as they are."""
        self.num_updates = 0
        with torch.no_grad():
            for p, a in zip(self._parameters, self._averages, strict=True):
                a.copy_(p)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Meanwhile the model has the averages as its weights; afterwards its own again, bit for bit."""
        own = [p.detach().clone() for p in self._parameters]
        _copy(self._averages, self._parameters)
        try:
            yield
        finally:
            _copy(own, self._parameters)

    def _decay(self, t: int) -> float:
        d = self.decay
        if self.start == "corrected":
            return d * (1 - d ** (t - 1)) / (1 - d**t)
        return min(d, (1 + t) / (10 + t)) if self.start == "warmup" else d


def _state(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """The entries of the state dict, tied ones too; parameters as themselves."""
    return model.state_dict(keep_vars=True).items()


def _lerp(averages: list[Tensor], weights: list[Tensor], weight: float) -> None:
    """All in one call where torch has it, which saves a kernel launch per tensor."""
    if averages and (together := getattr(torch, "_foreach_lerp_", None)) is not None:
        together(averages, weights, weight)
        return
    for a, w in zip(averages, weights, strict=True):
        a.lerp_(w, weight)


@torch.no_grad()
def _copy(sources: Iterable[Tensor], destinations: Iterable[Tensor]) -> None:
    for source, destination in zip(sources, destinations, strict=True):
        destination.copy_(source)
