"""Drawing tokens from probabilities."""

from typing import Any, Literal

import torch
from torch import Tensor

from oarlock.paddle.declare import api


@api("paddle.tensor.search.top_p_sampling", at="paddle.Tensor", out=False)
def top_p_sampling(
    x: Tensor,
    ps: Tensor,
    threshold: Tensor | None = None,
    topp_seed: Tensor | None = None,
    seed: int = -1,
    k: int = 0,
    mode: Literal["truncated", "non-truncated"] = "truncated",
    return_top: bool = False,
) -> Any:
    """Draw one token per row from the likeliest ones that together reach the probability `ps`.

    Args:
        x: probabilities, [B, V].
        ps: the probability to reach, per row.
        threshold: tokens of less probability are left out, per row.
        topp_seed: a seed per row; else `seed`, or torch's generator for -1.
        k: how many of the likeliest tokens to return too, with `return_top`.
        mode: "truncated" keeps the tokens whose likelier ones together stay below `ps`; "non-truncated" draws from all.

    Returns:
        The probability and the index of the token, [B, 1] each; then those of the `k` likeliest with `return_top`.
    """
    ordered, order = torch.sort(x.float(), -1, descending=True)
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if mode == "truncated":
        kept = torch.cumsum(ordered, -1) - ordered < ps.reshape(-1, 1).float()
    if threshold is not None:
        kept = kept & (ordered >= threshold.reshape(-1, 1))
    kept[:, 0] = True  # the likeliest token always may be drawn
    seeds = [seed] * len(x) if topp_seed is None else topp_seed.flatten().tolist()
    rows = [
        torch.multinomial(row, 1, generator=None if s == -1 else torch.Generator(x.device).manual_seed(int(s)))
        for row, s in zip(ordered * kept, seeds, strict=True)
    ]
    drawn = torch.stack(rows) if rows else order.new_zeros(0, 1)
    found = ordered.gather(-1, drawn).to(x.dtype), order.gather(-1, drawn)
    return (*found, ordered[:, :k].to(x.dtype), order[:, :k]) if return_top else found
