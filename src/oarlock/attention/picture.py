"""A picture of a mask as SVG, without a plotting library."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.attention.masks import ColumnMask

_CELLS = 64
"""Rows and columns of the picture at most; a cell of several pairs is as dark as the share that is visible."""
_PIXELS = 256
_SHADES = 8


class Picture(str):
    """SVG text that a notebook shows as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def draw(mask: ColumnMask, batch: int, head: int, title: str) -> Picture:
    """The mask of one batch row and head: rows downwards, keys to the right, dark where visible."""
    rows, keys = mask.seqlen_q, mask.seqlen_k
    block_q, block_k = (max(1, -(-length // _CELLS)) for length in (rows, keys))
    counts = mask.visible_per_tile(block_q, block_k)[batch, head].tolist()
    scale = _PIXELS / max(rows, keys, 1)
    width, height = keys * scale, rows * scale
    top = 22 if title else 4
    parts = []
    for tile, row in enumerate(counts):
        y, bottom = tile * block_q, min((tile + 1) * block_q, rows)
        shades = [
            -(-count * _SHADES // ((bottom - y) * (min((k + 1) * block_k, keys) - k * block_k)))
            for k, count in enumerate(row)
        ]
        place = 0
        for shade, run in groupby(shades):
            length = len(list(run))
            if shade:
                x, right = place * block_k, min((place + length) * block_k, keys)
                parts.append(
                    f'<rect x="{x * scale:.2f}" y="{y * scale:.2f}" width="{(right - x) * scale:.2f}" '
                    f'height="{(bottom - y) * scale:.2f}" fill-opacity="{0.15 + 0.85 * shade / _SHADES:.2f}"/>'
                )
            place += length
    heading = f'<text x="4" y="15" font-family="sans-serif" font-size="13" fill="currentColor">{escape(title)}</text>'
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 8:.0f}" height="{height + top + 4:.0f}" '
        f'viewBox="0 0 {width + 8:.0f} {height + top + 4:.0f}" color="#777" role="img">'
        f"<title>{escape(title or 'attention mask')}</title>{heading if title else ''}"
        f'<g transform="translate(4 {top})"><rect width="{width:.2f}" height="{height:.2f}" fill="#2f6690" '
        f'fill-opacity="0.06" stroke="currentColor" stroke-width="0.8"/>'
        f'<g fill="#2f6690" shape-rendering="crispEdges">{"".join(parts)}</g></g></svg>'
    )
