"""How a step is carried out: compiled or not, in how much memory, and what it tells of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """How blocks are compiled where train.compile = true."""

    cache: str = ""
    """Folder that keeps compiled code for later runs; empty = none."""
    max_breaks: int = -1
    """More graph breaks than this in the first two steps end the run; -1 = only tell."""
    backend: str = "inductor"
    """Of torch.compile. On a GPU inductor also records CUDA graphs."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """How much memory a step may take, and what is told about memory."""

    budget: str = ""
    """Bytes that parameters, gradients, optimizer states and activations may take at once, such as 1.5GiB, or a share
    of what a step takes with all activations kept, such as 60%; a hard cap. Empty = no cap."""
    plan: bool = True
    """Meet the budget: measure the first step (of a model with experts the first four), then keep activations, compute
    them again or send them to a second tier. false: only enforce it."""
    optimizer: bool = True
    """Keep the optimizer's states in the second tier, and step part by part, where activations alone cannot meet the
    budget."""
    tier: str = ""
    """Folder of the second tier's file on a CPU (a GPU sends to pinned host memory); empty = the system's."""
    rate: float = 0.0
    """Bytes per second to that file and back, to try a slower one; 0 = as fast as it goes."""

    record: str = ""
    """File that tells every allocation of the run, written at its end or where memory runs out: .html (a page), .pickle
    (a snapshot for torch's viewer), .json (Perfetto) or .npz (for `oarlock memory view`); empty = do not record."""
    stacks: bool = True
    """Also note where in the program each allocation was made."""
    events: int = 1_000_000
    """Allocations and frees that are kept, the last ones (40 bytes each)."""


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """What is told about errors."""

    errors: bool = False
    """Errors of backward passes say which call they belong to, and where in the program that is; a loss that is not
    finite is computed again to name what made it so."""
