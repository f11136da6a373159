"""`parallelize`: which layers are cut by columns and which by rows, by name, on the tensor-parallel axis of a mesh."""

import fnmatch
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from oarlock.paddle.distributed.tensors import Placement, ProcessMesh, Replicate, Shard, get_mesh, shard_tensor


class ColWiseParallel:
    """Cut a Linear ([in, out]) along `out`, an Embedding ([rows, width]) along its width.

    Args:
        gather_output: give whole outputs; without it they stay distributed.
    """

    def __init__(self, gather_output: bool = False) -> None:
        self.gather_output = gather_output

    dims: ClassVar = {"weight": 1, "bias": 0}


class RowWiseParallel:
    """Cut a Linear ([in, out]) along `in`, an Embedding ([rows, width]) along its rows.

    Args:
        is_input_parallel: the input is distributed already.
    """

    def __init__(self, is_input_parallel: bool = True) -> None:
        self.is_input_parallel = is_input_parallel

    dims: ClassVar = {"weight": 0}


def parallelize(
    model: nn.Module, optimizer: Any = None, mesh: ProcessMesh | None = None, config: Mapping[str, Any] | None = None
) -> tuple[nn.Module, Any]:
    """Spread the parameters of a model over a mesh, in place.

    Args:
        mesh: with an axis "mp"; by default that of `set_mesh`.
        config: {"mp_config": {"parallelize_plan": {pattern: ColWiseParallel() or RowWiseParallel()}}}; a pattern is a
            layer's name, `*` stands for anything.

    Raises:
        ValueError: no mesh, no axis "mp", an unknown part of `config`, or a pattern that fits no layer.
    """
    mesh = get_mesh() if mesh is None else mesh
    if mesh is None or "mp" not in mesh.dim_names:
        raise ValueError("parallelize() needs a mesh with an axis named 'mp': ProcessMesh([0, 1], dim_names=['mp'])")
    unknown = sorted((config or {}).keys() - {"mp_config"})
    if unknown:
        raise ValueError(f"parallelize() got {unknown}; here it takes 'mp_config' (parallelize_plan)")
    plan: Mapping[str, Any] = (config or {}).get("mp_config", {}).get("parallelize_plan", {})
    used: set[str] = set()
    for name, layer in model.named_modules():
        pattern = next((p for p in plan if fnmatch.fnmatchcase(name, p)), None)
        used |= {pattern} if pattern else set()
        dims = plan[pattern].dims if pattern else {}
        for key, parameter in list(layer.named_parameters(recurse=False)):
            placements: list[Placement] = [Replicate()] * mesh.ndim
            if key in dims:
                placements[mesh.dim_names.index("mp")] = Shard(dims[key])
            setattr(layer, key, shard_tensor(parameter, mesh, placements))
    if missing := sorted(plan.keys() - used):
        raise ValueError(
            f"no layer is named {missing[0]!r}; there are {[n for n, _ in model.named_modules() if n][:8]}"
        )
    return model, optimizer
