"""`paddle.audio.features`: spectra of sound as layers.

Letters: C channels, T samples, F frequencies, M mel bands, S frames.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from oarlock.paddle.audio.functional.mel import compute_fbank_matrix, create_dct, power_to_db
from oarlock.paddle.audio.functional.window import get_window
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.signal import stft
from oarlock.paddle.tensors.linalg import matmul

__all__ = ["MFCC", "LogMelSpectrogram", "MelSpectrogram", "Spectrogram"]


class Spectrogram(Layer):
    """`|stft(x)|^power`, with a window of its own.

    Args:
        n_fft: points of a transform; F is `n_fft // 2 + 1`.
        hop_length: samples from one frame to the next, a quarter of the window if it is None.
        win_length: points of the window, `n_fft` if it is None.
        window: as `get_window` takes it.
        power: 1 for magnitudes, 2 for powers.
    """

    fft_window: Tensor

    def __init__(
        self,
        n_fft: int = 512,
        hop_length: int | None = 512,
        win_length: int | None = None,
        window: Any = "hann",
        power: float = 1.0,
        center: bool = True,
        pad_mode: str = "reflect",
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        if power <= 0:
            raise ValueError(f"power must be positive, not {power}")
        length = win_length or n_fft
        self.power = power
        self._options = (n_fft, hop_length or length // 4, length)
        self._center, self._pad_mode = center, pad_mode
        self.register_buffer("fft_window", get_window(window, length, fftbins=True, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[C, T] -> [C, F, S]."""
        return stft(x, *self._options, self.fft_window, self._center, self._pad_mode).abs() ** self.power


class MelSpectrogram(Layer):
    """A spectrogram summed in mel bands; see `compute_fbank_matrix`."""

    def __init__(
        self,
        sr: int = 22050,
        n_fft: int = 2048,
        hop_length: int | None = 512,
        win_length: int | None = None,
        window: Any = "hann",
        power: float = 2.0,
        center: bool = True,
        pad_mode: str = "reflect",
        n_mels: int = 64,
        f_min: float = 50.0,
        f_max: float | None = None,
        htk: bool = False,
        norm: Any = "slaney",
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self._spectrogram = Spectrogram(n_fft, hop_length, win_length, window, power, center, pad_mode, dtype)
        top = sr // 2 if f_max is None else f_max
        self.register_buffer("fbank_matrix", compute_fbank_matrix(sr, n_fft, n_mels, f_min, top, htk, norm, dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[C, T] -> [C, M, S]."""
        return matmul(self.fbank_matrix, self._spectrogram(x))


class LogMelSpectrogram(Layer):
    """A mel spectrogram in decibels; see `power_to_db`."""

    def __init__(
        self,
        sr: int = 22050,
        n_fft: int = 512,
        hop_length: int | None = None,
        win_length: int | None = None,
        window: Any = "hann",
        power: float = 2.0,
        center: bool = True,
        pad_mode: str = "reflect",
        n_mels: int = 64,
        f_min: float = 50.0,
        f_max: float | None = None,
        htk: bool = False,
        norm: Any = "slaney",
        ref_value: float = 1.0,
        amin: float = 1e-10,
        top_db: float | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self._melspectrogram = MelSpectrogram(
            sr, n_fft, hop_length, win_length, window, power, center, pad_mode, n_mels, f_min, f_max, htk, norm, dtype
        )
        self._decibels = (ref_value, amin, top_db)

    def forward(self, x: Tensor) -> Tensor:
        """[C, T] -> [C, M, S]."""
        return power_to_db(self._melspectrogram(x), *self._decibels)


class MFCC(Layer):
    """Cepstra: the cosine transform of a mel spectrogram in decibels."""

    def __init__(
        self,
        sr: int = 22050,
        n_mfcc: int = 40,
        n_fft: int = 512,
        hop_length: int | None = None,
        win_length: int | None = None,
        window: Any = "hann",
        power: float = 2.0,
        center: bool = True,
        pad_mode: str = "reflect",
        n_mels: int = 64,
        f_min: float = 50.0,
        f_max: float | None = None,
        htk: bool = False,
        norm: Any = "slaney",
        ref_value: float = 1.0,
        amin: float = 1e-10,
        top_db: float | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        if n_mfcc > n_mels:
            raise ValueError(f"n_mfcc {n_mfcc} must not exceed n_mels {n_mels}")
        self._log_melspectrogram = LogMelSpectrogram(
            sr,
            n_fft,
            hop_length,
            win_length,
            window,
            power,
            center,
            pad_mode,
            n_mels,
            f_min,
            f_max,
            htk,
            norm,
            ref_value,
            amin,
            top_db,
            dtype,
        )
        self.register_buffer("dct_matrix", create_dct(n_mfcc, n_mels, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[C, T] -> [C, n_mfcc, S]."""
        return matmul(self.dct_matrix, self._log_melspectrogram(x), transpose_x=True)
