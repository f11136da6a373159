"""Random streams by name: dropout that must differ between tensor-parallel processes, and dropout that must not."""

import contextlib
from collections.abc import Iterator

import torch


class RNGStatesTracker:
    """Several states of the random generators (of the CPU, and of the current GPU)."""

    def __init__(self) -> None:
        self.states_: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all of them."""
        self.states_.clear()
        self.seeds_.clear()

    def add(self, name: str, seed: int) -> None:
        """Begin a stream.

        Raises:
            ValueError: the name or the seed was taken before.
        """
        if name in self.states_ or seed in self.seeds_:
            raise ValueError(f"add({name!r}, {seed}): the name or the seed is taken; there are {sorted(self.states_)}")
        before = _state()
        torch.manual_seed(seed)
        self.states_[name] = _state()
        self.seeds_.add(seed)
        _restore(before)

    @contextlib.contextmanager
    def rng_state(self, name: str = "global_seed") -> Iterator[None]:
        """Draw from a stream within the block.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.states_:
            raise ValueError(f"there is no random stream {name!r}; add() one. There are {sorted(self.states_)}")
        before = _state()
        _restore(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = _state()
            _restore(before)


def _state() -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _restore(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


_tracker = RNGStatesTracker()


def get_rng_state_tracker() -> RNGStatesTracker:
    """The streams of this process."""
    return _tracker
