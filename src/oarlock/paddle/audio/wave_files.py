"""PCM files of the WAV format, with the standard library."""

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.declare import api

AT = "paddle.audio"
ENCODINGS = (None, "PCM_16", "PCM_S", "PCM16")


@dataclass
class AudioInfo:
    """What the head of a file says."""

    sample_rate: int
    num_samples: int  # of each channel
    num_channels: int
    bits_per_sample: int
    encoding: str  # "PCM_S", of 8 bits "PCM_U"


@api(at=AT, out=False)
def info(filepath: str | Path | BinaryIO) -> AudioInfo:
    """The rate, length and format of a WAV file.

    Raises:
        NotImplementedError: the file holds no PCM samples.
    """
    with _opened(filepath) as file:
        bits = 8 * file.getsampwidth()
        encoding = "PCM_U" if bits == 8 else "PCM_S"
        return AudioInfo(file.getframerate(), file.getnframes(), file.getnchannels(), bits, encoding)


@api(at=AT, out=False)
def load(
    filepath: str | Path | BinaryIO,
    frame_offset: int = 0,
    num_frames: int = -1,
    normalize: bool = True,
    channels_first: bool = True,
) -> tuple[Tensor, int]:
    """The samples of a WAV file, and their rate.

    Args:
        frame_offset: the first sample to read.
        num_frames: how many samples of each channel to read, -1 for all.
        normalize: samples between -1 and 1; else the integers of the file.

    Returns:
        float32 [channels, samples], or [samples, channels], and the samples a second.

    Raises:
        NotImplementedError: the file holds no PCM samples of 8, 16 or 32 bits.
    """
    if frame_offset < 0 or num_frames < -1:
        raise ValueError(f"frame_offset {frame_offset} must not be negative, nor num_frames {num_frames} below -1")
    with _opened(filepath) as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        file.setpos(min(frame_offset, file.getnframes()))
        data = file.readframes(file.getnframes() if num_frames == -1 else num_frames)
    kinds = {1: "u1", 2: "<i2", 4: "<i4"}
    if width not in kinds:
        raise NotImplementedError(f"samples of {8 * width} bits are not read; known are 8, 16 and 32")
    found = np.frombuffer(data, kinds[width]).astype(np.float64).reshape(-1, channels)
    if width == 1:
        found = found - 128  # samples of 8 bits have no sign
    if normalize:
        found = found / 2 ** (8 * width - 1)
    samples = torch.from_numpy(found.astype(np.float32))
    return (samples.t().contiguous() if channels_first else samples), rate


@api(at=AT, out=False)
def save(
    filepath: str | Path | BinaryIO,
    src: Tensor,
    sample_rate: int,
    channels_first: bool = True,
    encoding: str | None = None,
    bits_per_sample: int | None = 16,
) -> None:
    """Write samples of 16 bits into a WAV file.

    Args:
        src: [channels, samples], or [samples, channels]: fractions from -1 to 1, beyond which they are cut, or int16.

    Raises:
        ValueError: another number of dimensions, of bits, another encoding or dtype.
    """
    if src.ndim != 2:
        raise ValueError(f"src must have two dimensions, not the shape {list(src.shape)}")
    if bits_per_sample not in (None, 16) or encoding not in ENCODINGS:
        raise ValueError(f"16 bits of PCM are written, not {bits_per_sample} bits of {encoding!r}")
    samples = src.detach().cpu()
    if samples.is_floating_point():
        samples = (samples.double() * 2**15).trunc().clamp(-(2**15), 2**15 - 1).to(torch.int16)
    elif samples.dtype != torch.int16:
        raise ValueError(f"src must be of fractions or int16, not {samples.dtype}")
    rows = samples.t() if channels_first else samples
    with wave.open(_name(filepath), "wb") as file:
        file.setnchannels(rows.shape[1])
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(rows.contiguous().numpy().astype("<i2").tobytes())


def _name(filepath: Any) -> Any:
    return str(filepath) if isinstance(filepath, Path) else filepath


def _opened(filepath: Any) -> wave.Wave_read:
    try:
        return wave.open(_name(filepath), "rb")
    except (wave.Error, EOFError) as error:
        raise NotImplementedError(f"{filepath} is no WAV file of PCM samples: {error}") from error
