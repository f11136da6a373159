"""The state of the random generators as plain tensors and JSON: torch on CPU and CUDA, numpy, Python's random."""

import random
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMPY_GENERATOR = "MT19937"


def capture_rng() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of the process's global random generators.

    Returns:
        tensors `torch` (uint8), `torch_cuda` (uint8; the current device, only once CUDA is in use), `numpy` and
        `python` (int64 [624] and [625]), and the JSON that goes with them. Save them per rank:
        `save_checkpoint(..., rank_tensors={"rng": tensors}, rank_state={"rng": state})`.

    Raises:
        ValueError: numpy's global generator was exchanged for another kind.
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # type: ignore[misc]
    if kind != _NUMPY_GENERATOR:
        raise ValueError(f"numpy's global generator is {kind}; only {_NUMPY_GENERATOR}, its default, can be captured")
    version, words, next_gauss = random.getstate()
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "python": torch.tensor(words, dtype=torch.int64, device="cpu"),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors["torch_cuda"] = torch.cuda.get_rng_state()
    state = {
        "numpy": {"position": int(position), "has_gauss": int(has_gauss), "gauss": float(gauss)},
        "python": {"version": version, "gauss": next_gauss},
    }
    return tensors, state


def restore_rng(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Set the global generators to what capture_rng returned. Nothing is set if something is missing.

    A CUDA state without CUDA here, or CUDA in use here without a saved state, is named in a warning: such a run does
    not repeat the saved one.

    Raises:
        ValueError: a state is missing or has the wrong form.
    """
    missing = [name for name in ("torch", "numpy", "python") if name not in tensors]
    missing += [f"state[{name!r}]" for name in ("numpy", "python") if name not in state]
    if missing:
        raise ValueError(f"the saved generator state lacks {', '.join(missing)}; it is not from capture_rng")
    for name, size in (("torch", len(torch.get_rng_state())), ("numpy", 624), ("python", 625)):
        if tensors[name].shape != (size,):
            raise ValueError(f"generator state {name!r} has shape {tuple(tensors[name].shape)}, expected ({size},)")
    words = tensors["numpy"].numpy(force=True).astype(np.uint32)
    saved = state["numpy"]
    numpy_state = (_NUMPY_GENERATOR, words, saved["position"], saved["has_gauss"], saved["gauss"])
    python_state = (state["python"]["version"], tuple(tensors["python"].tolist()), state["python"]["gauss"])
    torch.set_rng_state(tensors["torch"].cpu())
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    cuda_state = tensors.get("torch_cuda")
    if cuda_state is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda_state.cpu())
    elif cuda_state is not None:
        warnings.warn("the saved CUDA generator state is not used: no CUDA device here", stacklevel=2)
    elif torch.cuda.is_available() and torch.cuda.is_initialized():
        warnings.warn("no CUDA generator state was saved; CUDA's generator keeps its present one", stacklevel=2)
