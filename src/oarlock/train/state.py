"""What a run saves in its checkpoints, and how it goes on from one: weights, optimizers, place in the data."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from oarlock import checkpoint
from oarlock.checkpoint import Checkpoint
from oarlock.models import Decoder
from oarlock.train.config import TrainConfig
from oarlock.train.data import PackedLoader
from oarlock.train.ema import WeightAverage


@dataclass
class LoopState:
    """What the loop has done so far."""

    step: int = 0
    tokens: int = 0
    """Input tokens, padding included: what the model computed on."""
    flops: float = 0.0
    """Model FLOPs, forward and backward."""
    seconds: float = 0.0
    """Time in optimizer steps, without evaluation and saving."""
    best_loss: float = math.inf
    num_steps: int = 0
    """Last step of the run, as planned when it was saved."""


@dataclass
class TrainingState:
    """Everything that the next step depends on, besides the configuration."""

    model: Decoder
    optimizers: dict[str, torch.optim.Optimizer]
    loader: PackedLoader
    data_key: str
    """Hash of the text, its split and its tokenizer."""
    loop: LoopState = field(default_factory=LoopState)
    average: WeightAverage | None = None

    def save(self, root: Path, config: TrainConfig, data_ranks: int) -> None:
        """Save a checkpoint of the present step into `root`; all ranks call it.

        Args:
            config: of the run; with `checkpoint.background` this returns when all is copied, see finish_saves.
            data_ranks: ranks that share out the sequences.

        Raises:
            CheckpointError: this save failed, or an earlier one in the background.
        """
        parameters = dict(self.model.named_parameters())
        tensors: dict[str, dict[str, Tensor]] = {"model": self.model.state_dict()}
        optimizer_states = {}
        for name, optimizer in self.optimizers.items():
            tensors[f"optimizer_{name}"] = checkpoint.optimizer_tensors(optimizer, parameters.items())
            optimizer_states[name] = checkpoint.optimizer_state(optimizer, parameters.items())
        if self.average is not None:
            tensors["ema"] = self.average.tensors()
        rng_tensors, rng_state = checkpoint.capture_rng()
        checkpoint.save_checkpoint(
            root,
            self.loop.step,
            tensors=tensors,
            state={
                "loop": asdict(self.loop),
                "loader": self.loader.state_dict(),
                "optimizers": optimizer_states,
                "data": self.data_key,
                "budget": config.train.flops,
                "data_ranks": data_ranks,
                "ema_updates": self.average.num_updates if self.average else 0,
            },
            rank_tensors={"rng": rng_tensors},
            rank_state=rng_state,
            files={
                "config.toml": config.to_toml().encode(),
                "config.json": (json.dumps(self.model.config.to_hf(), indent=1) + "\n").encode(),
            },
            keep_last=config.checkpoint.keep_last or None,
            overwrite=True,
            wait=not config.checkpoint.background,
        )

    def load(self, path: Path, *, device: torch.device, rank: int, num_ranks: int) -> Checkpoint:
        """Go on from a checkpoint, whatever the number of ranks that saved it; all ranks call it.

        Every part is read and verified by one of the ranks that need it, before anything changes.

        Returns:
            The checkpoint.

        Raises:
            CheckpointError: it is damaged.
            ValueError: it is of another model, optimizer or text, or was not saved by a training run.
        """
        saved = checkpoint.load_checkpoint(path, verify="read")
        try:
            loop, data_key = LoopState(**saved.state["loop"]), saved.state["data"]
            options, place = saved.state["optimizers"], saved.state["loader"]
        except (KeyError, TypeError):
            raise ValueError(f"{path} was not saved by `oarlock train`, which cannot continue from it") from None
        self._check_model(saved)
        if unknown := sorted(options.keys() ^ self.optimizers.keys()):
            raise ValueError(
                f"{path} was saved with optimizer {' and '.join(options)}; {unknown[0]} is not on both sides"
            )
        if data_key != self.data_key:
            raise ValueError(
                f"{path} was trained on another text: the corpus, its split or its tokenizer has changed since; "
                "restore it, or start anew with another --train.out"
            )
        tensors = {name: _read(saved, f"optimizer_{name}", device) for name in self.optimizers}
        saved.load("model", self.model.state_dict())
        parameters = dict(self.model.named_parameters())
        for name, optimizer in self.optimizers.items():
            # the learning rates of this configuration hold, also where they were changed
            checkpoint.load_optimizer(optimizer, parameters.items(), tensors[name], options[name], options=False)
        self._load_average(saved)
        self.loader.load_state_dict(place)
        self.loop = loop
        if saved.world_size == num_ranks:
            checkpoint.restore_rng(saved.tensors("rng", rank=rank), saved.rank_state(rank))
        return saved

    def _load_average(self, saved: Checkpoint) -> None:
        """As it was saved; if there was none, it begins with the weights that were."""
        if self.average is None:
            return
        if "ema" in saved.groups():
            saved.load("ema", self.average.tensors())
            self.average.num_updates = saved.state["ema_updates"]
        else:
            self.average.reset()

    def _check_model(self, saved: Checkpoint) -> None:
        found = saved.shapes("model")
        wanted = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
        for name in [*wanted, *found]:
            if found.get(name) != wanted.get(name):
                there, here = (
                    f"of shape {shape}" if shape else "absent" for shape in (found.get(name), wanted.get(name))
                )
                raise ValueError(f"{saved.path} is of another model: {name} is {there} there and {here} here")


def _read(saved: Checkpoint, group: str, device: torch.device) -> dict[str, Tensor]:
    """All tensors of a group; the ranks share out the verification."""
    source = saved.source(group)
    found = {name: torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in source.tensors.items()}
    source.load(found)
    return found
