"""Compile a model block by block: blocks that are alike share one compilation, and names of weights stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def compile_blocks(
    model: nn.Module,
    blocks: Iterable[nn.Module] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    fullgraph: bool = False,
) -> int:
    """Have the repeated blocks of a model compiled when they are first called; in place.

    A block is compiled by `nn.Module.compile`, so that the model's class, parameter names and state dict stay as they
    are. Alike blocks run the same code: the first call compiles, the others find it.

    Args:
        model: any module.
        blocks: what is compiled; None for the members of the longest nn.ModuleList, the layers of a decoder.
        backend: of torch.compile.
        mode: of torch.compile; None records CUDA graphs ("reduce-overhead") where the model is on a GPU: the parts
            between graph breaks are captured.
        fullgraph: a graph break is an error.

    Returns:
        how many blocks.

    Raises:
        ValueError: `blocks` is None and there is no nn.ModuleList.
    """
    if blocks is None:
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
        if not lists:
            raise ValueError(f"{type(model).__name__} has no nn.ModuleList; say which blocks to compile")
        blocks = max(lists, key=len)
    first = next(model.parameters(), None)
    if mode is None and backend == "inductor" and first is not None and first.device.type == "cuda":
        mode = "reduce-overhead"
    chosen = list(blocks)
    for block in chosen:
        block.compile(backend=backend, mode=mode, fullgraph=fullgraph)
    return len(chosen)


def is_compiled(module: nn.Module) -> bool:
    """Whether `nn.Module.compile` was called on a module or on one inside of it."""
    return any(each._compiled_call_impl is not None for each in module.modules())


def forget_compiled(model: nn.Module) -> None:
    """Have all modules run eagerly again, and let go of what was compiled in this process."""
    for module in model.modules():
        module._compiled_call_impl = None
    torch.compiler.reset()
