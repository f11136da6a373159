"""`paddle.signal`: short-time Fourier transforms."""

import torch
from torch import Tensor

from oarlock.paddle.declare import api, exports

AT = "paddle.signal"


@api("paddle.Tensor.stft", at=AT)
def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Tensor:
    """Fourier transforms of windows, [..., frequency, frame], complex."""
    length = win_length or n_fft
    window = torch.ones(length, dtype=x.real.dtype, device=x.device) if window is None else window
    hop = n_fft // 4 if hop_length is None else hop_length
    one = onesided if onesided is not None else not x.is_complex()
    return torch.stft(x, n_fft, hop, length, window, center, pad_mode, normalized, one, return_complex=True)


@api("paddle.Tensor.istft", at=AT)
def istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool = True,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose `stft` is `x`."""
    size = win_length or n_fft
    window = torch.ones(size, dtype=x.real.dtype, device=x.device) if window is None else window
    hop = n_fft // 4 if hop_length is None else hop_length
    return torch.istft(x, n_fft, hop, size, window, center, normalized, onesided, length, return_complex)


globals().update(exports(AT))
