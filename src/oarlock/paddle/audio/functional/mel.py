"""The mel scale of pitch, its filter bank, the cosine transform of cepstra, and decibels."""

import math
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.audio.functional.window import AT
from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype

# Slaney's scale: linear below 1000 Hz (mel 15), then 27 mels for each factor of 6.4.
LINEAR, BREAK_HZ, BREAK_MEL, LOG_STEP = 200 / 3, 1000.0, 15.0, math.log(6.4) / 27


@api(at=AT, out=False)
def hz_to_mel(freq: Any, htk: bool = False) -> Any:
    """Mels of a frequency in Hz, a number or a tensor: Slaney's scale, or `2595·log10(1 + f/700)` with `htk`."""
    f = torch.as_tensor(freq, dtype=freq.dtype if isinstance(freq, Tensor) else torch.float64)
    if htk:
        mel = 2595.0 * torch.log10(1.0 + f / 700.0)
    else:
        mel = torch.where(f >= BREAK_HZ, BREAK_MEL + torch.log(f.clamp(min=1e-10) / BREAK_HZ) / LOG_STEP, f / LINEAR)
    return mel if isinstance(freq, Tensor) else mel.item()


@api(at=AT, out=False)
def mel_to_hz(mel: Any, htk: bool = False) -> Any:
    """The frequency in Hz of mels, the inverse of `hz_to_mel`."""
    m = torch.as_tensor(mel, dtype=mel.dtype if isinstance(mel, Tensor) else torch.float64)
    if htk:
        hz = 700.0 * (10.0 ** (m / 2595.0) - 1.0)
    else:
        hz = torch.where(m >= BREAK_MEL, BREAK_HZ * torch.exp(LOG_STEP * (m - BREAK_MEL)), LINEAR * m)
    return hz if isinstance(mel, Tensor) else hz.item()


@api(at=AT, out=False)
def mel_frequencies(
    n_mels: int = 64, f_min: float = 0.0, f_max: float = 11025.0, htk: bool = False, dtype: DTypeLike = "float32"
) -> Tensor:
    """`n_mels` frequencies in Hz, evenly spaced in mels from `f_min` to `f_max`."""
    ends = (hz_to_mel(f_min, htk), hz_to_mel(f_max, htk))
    return mel_to_hz(torch.linspace(*ends, n_mels, dtype=as_dtype(dtype)), htk)


@api(at=AT, out=False)
def fft_frequencies(sr: int, n_fft: int, dtype: DTypeLike = "float32") -> Tensor:
    """The frequencies in Hz of the bins of a real transform."""
    return torch.linspace(0, sr / 2, 1 + n_fft // 2, dtype=as_dtype(dtype))


@api(at=AT, out=False)
def compute_fbank_matrix(
    sr: int,
    n_fft: int,
    n_mels: int = 64,
    f_min: float = 0.0,
    f_max: float | None = None,
    htk: bool = False,
    norm: Any = "slaney",
    dtype: DTypeLike = "float32",
) -> Tensor:
    """Triangular filters, [n_mels, 1 + n_fft // 2], from power spectra to mel bands.

    `norm="slaney"` gives each filter the same area; a number divides it by that norm.
    """
    edges = mel_frequencies(n_mels + 2, f_min, sr / 2 if f_max is None else f_max, htk, dtype)
    widths, slopes = edges.diff(), edges[:, None] - fft_frequencies(sr, n_fft, dtype)[None]
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    weights = torch.minimum(rising, falling).clamp(min=0)
    if norm == "slaney":
        return weights * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return torch.nn.functional.normalize(weights, float(norm), -1) if isinstance(norm, (int, float)) else weights


@api(at=AT, out=False)
def create_dct(n_mfcc: int, n_mels: int, norm: str | None = "ortho", dtype: DTypeLike = "float32") -> Tensor:
    """The cosine transform of type II, [n_mels, n_mfcc], from log mel bands to cepstra."""
    n, k = torch.arange(n_mels, dtype=torch.float64), torch.arange(n_mfcc, dtype=torch.float64)
    made = torch.cos(math.pi / n_mels * (n[:, None] + 0.5) * k)
    if norm is None:
        made = made * 2.0
    elif norm == "ortho":
        made = made * math.sqrt(2.0 / n_mels)
        made[:, 0] /= math.sqrt(2.0)
    else:
        raise ValueError(f"norm must be 'ortho' or None, not {norm!r}")
    return made.to(as_dtype(dtype))


@api(at=AT, out=False)
def power_to_db(spect: Tensor, ref_value: float = 1.0, amin: float = 1e-10, top_db: float | None = 80.0) -> Tensor:
    """`10·log10(x / ref_value)`, at most `top_db` below the largest value."""
    if amin <= 0 or ref_value <= 0:
        raise ValueError(f"amin and ref_value must be positive, not {amin} and {ref_value}")
    made = 10.0 * torch.log10(spect.clamp(min=amin)) - 10.0 * math.log10(max(ref_value, amin))
    return made if top_db is None else torch.maximum(made, made.max() - top_db)
