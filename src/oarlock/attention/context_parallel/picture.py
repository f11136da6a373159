"""A picture of a plan as SVG: the mask, its rows in the colours of their ranks, and what each rank computes and gets.

Legend: R ranks.
"""

from __future__ import annotations

from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import torch

from oarlock.attention.picture import Picture

if TYPE_CHECKING:
    from oarlock.attention.context_parallel.plan import ContextPlan

_CELLS = 96
_PIXELS = 288
_SHADES = 8
_BAR = 150
_MOST_LABELS = 24


def draw(plan: ContextPlan, title: str) -> Picture:
    """Rows downwards, keys to the right, dark where visible; beside it one bar of pairs and one of keys per rank."""
    title = title or (
        f"{plan.num_ranks} ranks, chunks of {plan.chunk}, {plan.method}: balance {plan.balance:.3f}, "
        f"{plan.kv_share():.0%} of the keys sent"
    )
    top, height = 24, _PIXELS
    bars = _bars(plan)
    width = _PIXELS + 24 + bars[1]
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 8}" height="{height + top + 22}" '
        f'viewBox="0 0 {width + 8} {height + top + 22}" color="#777" font-family="sans-serif" role="img">'
        f'<title>{escape(title)}</title><text x="4" y="15" font-size="13" fill="currentColor">{escape(title)}</text>'
        f'<g transform="translate(4 {top})">{_mask(plan)}'
        f'<rect width="{_PIXELS}" height="{height}" fill="none" stroke="currentColor" stroke-width="0.8"/></g>'
        f'<g transform="translate({_PIXELS + 28} {top})">{bars[0]}</g></svg>'
    )


def colour(rank: int, num_ranks: int) -> str:
    """Hues that differ between neighbours, of about equal lightness."""
    return f"hsl({(205 + rank * 360 / num_ranks) % 360:.0f} 55% 45%)"


def _mask(plan: ContextPlan) -> str:
    seqlen = plan.seqlen
    block = max(1, -(-seqlen // _CELLS))
    # rows in pieces that end where a chunk ends, so that a piece has one colour
    counts = plan.mask.visible_per_tile(block, block)[0].float().mean(0).tolist()
    scale = _PIXELS / max(seqlen, 1)
    parts = []
    rows = sorted({*range(0, seqlen, block), *range(0, seqlen, plan.chunk), seqlen})
    if len(rows) > 4 * _CELLS:
        rows = [*range(0, seqlen, block), seqlen]
    for begin, end in pairwise(rows):
        fill = colour(plan.owner[begin // plan.chunk], plan.num_ranks)
        y, tall = f"{begin * scale:.2f}", f"{(end - begin) * scale:.2f}"
        parts.append(f'<rect width="{_PIXELS}" y="{y}" height="{tall}" fill="{fill}" fill-opacity="0.1"/>')
        tile = begin // block
        tile_rows = min((tile + 1) * block, seqlen) - tile * block
        shades = [
            -(-count * _SHADES // (tile_rows * (min((k + 1) * block, seqlen) - k * block)))
            for k, count in enumerate(counts[tile])
        ]
        place = 0
        for shade, run in groupby(shades):
            length = len(list(run))
            if shade:
                x, right = place * block * scale, min((place + length) * block, seqlen) * scale
                parts.append(
                    f'<rect x="{x:.2f}" y="{y}" width="{right - x:.2f}" height="{tall}" fill="{fill}" '
                    f'fill-opacity="{0.15 + 0.85 * shade / _SHADES:.2f}"/>'
                )
            place += length
    return f'<g shape-rendering="crispEdges">{"".join(parts)}</g>'


def _bars(plan: ContextPlan) -> tuple[str, int]:
    """The bars, and their width."""
    pairs, keys = plan.pairs(), plan.kv_rows().sum(1)
    step = _PIXELS / plan.num_ranks
    parts = []
    columns = ((24, "visible pairs", pairs), (_BAR + 48, "keys received", keys))
    for x, name, values in columns:
        most = max(int(values.max()), 1)
        for rank in range(plan.num_ranks):
            share = int(values[rank]) / most
            tip = f"rank {rank}: {int(values[rank])} {name}"
            parts.append(
                f'<rect x="{x}" y="{rank * step + step * 0.15:.2f}" width="{share * _BAR:.2f}" '
                f'height="{step * 0.7:.2f}" fill="{colour(rank, plan.num_ranks)}"><title>{tip}</title></rect>'
            )
        mean = float(values.to(torch.float64).mean()) / most * _BAR + x
        parts.append(
            f'<line x1="{mean:.2f}" x2="{mean:.2f}" y2="{_PIXELS}" stroke="currentColor" stroke-dasharray="3 3"/>'
            f'<text x="{x}" y="{_PIXELS + 15}" font-size="11" fill="currentColor">{name}</text>'
        )
    for rank in range(0, plan.num_ranks, -(-plan.num_ranks // _MOST_LABELS)):
        parts.append(
            f'<text x="18" y="{(rank + 0.5) * step + 4:.2f}" font-size="11" text-anchor="end" '
            f'fill="currentColor">{rank}</text>'
        )
    return "".join(parts), 2 * _BAR + 56
