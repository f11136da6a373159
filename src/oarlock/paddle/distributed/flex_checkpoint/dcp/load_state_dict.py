"""`load_state_dict`: any checkpoint into any layout, through the AOA language where names or shapes differ."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from oarlock.checkpoint import CheckpointError, TensorSource, finish_saves, latest_checkpoint, open_tensors
from oarlock.checkpoint.aoa import AOA, TensorSpec
from oarlock.paddle.distributed.communication.group import Group
from oarlock.paddle.distributed.flex_checkpoint.dcp.save_state_dict import flatten

AOAConfig = Mapping[str, Any]


def load_state_dict(
    state_dict: Mapping[str, Any],
    path: str | PathLike[str],
    process_group: Group | None = None,
    coordinator_rank: int = 0,
    unique_id: int | None = None,
    offload: bool = False,
    mw_name_compatibility: bool = True,
    aoa_config: AOAConfig | None = None,
    safetensors: bool = False,
    worker_groups: Sequence[Group] | None = None,
    comm_method: str = "broadcast",
) -> None:
    """Fill tensors that exist, whatever the layout was when they were saved.

    Args:
        state_dict: tensors, distributed tensors and `ShardedWeight`s, written in place; dicts may be nested.
        path: what `save_state_dict` wrote, here or with Paddle, or any other format that `open_tensors` knows.
        process_group: the processes that load together; None = all.
        unique_id: which checkpoint in `path`; the latest by default.
        aoa_config: {"aoa_statements": [...]}: how the destinations are made of what is stored (docs/aoa.md).
        coordinator_rank, offload, mw_name_compatibility, safetensors, worker_groups, comm_method: taken, and not
            needed: every process reads from the files what its own tensors need.

    Raises:
        CheckpointError: names, shapes or dtypes do not fit, or a file is damaged. Nothing was changed.
    """
    group = None if process_group is None else process_group.process_group
    finish_saves()
    _open(path, unique_id).load(
        flatten(state_dict), aoa=_statements(aoa_config), strict="destination", process_group=group
    )


def load_merged_state_dict(
    path: str | PathLike[str],
    prefix: str | None = None,
    unique_id: int | None = None,
    offload: bool = False,
    aoa_config: AOAConfig | None = None,
    safetensors: bool = False,
) -> dict[str, Tensor]:
    """All tensors, whole, in this process.

    Args:
        prefix: only the names that begin with it.
        aoa_config: as for `load_state_dict`.
    """
    finish_saves()
    tensors = _open(path, unique_id).read()
    statements = _statements(aoa_config)
    if statements is not None:
        shapes = {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        tensors = AOA(statements).compile(shapes).apply(tensors)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix or "")}


def _open(path: str | PathLike[str], unique_id: int | None) -> TensorSource:
    if unique_id is not None and (step := Path(path) / f"step-{unique_id:08d}").is_dir():
        return open_tensors(step)
    latest = latest_checkpoint(path) if unique_id is None else None
    return open_tensors(path if latest is None else latest)


def _statements(config: AOAConfig | None) -> list[str] | None:
    if config is None:
        return None
    unknown = sorted(config.keys() - {"aoa_statements", "aoa_config_reverse", "enable_traceback"})
    if unknown:
        raise CheckpointError(f"aoa_config holds {unknown}; it takes 'aoa_statements'")
    if config.get("aoa_config_reverse"):
        raise CheckpointError(
            "aoa_config_reverse is not taken: AOA(...).compile(...).reverse() in oarlock.checkpoint.aoa"
        )
    return list(config.get("aoa_statements", ()))
