"""WAV files: what is written is read, whatever the width of a sample."""

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import oarlock.paddle as paddle


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 50) * 2 - 1
    paddle.audio.save(tmp_path / "a.wav", x, 8000)
    y, rate = paddle.audio.load(tmp_path / "a.wav")
    assert rate == 8000
    assert y.dtype == torch.float32
    assert y.shape == (2, 50)
    assert (x - y).abs().max() <= 1 / 2**15
    part, _ = paddle.audio.load(tmp_path / "a.wav", 10, 5, channels_first=False)
    assert torch.equal(part, y[:, 10:15].T)
    assert paddle.audio.load(tmp_path / "a.wav", 45, 20)[0].shape == (2, 5)
    assert paddle.audio.load(tmp_path / "a.wav", 99)[0].shape == (2, 0)


def test_loud_samples_are_cut(tmp_path: Path) -> None:
    paddle.audio.save(str(tmp_path / "a.wav"), torch.tensor([[1.0, 2.0, -3.0]]), 8000)
    assert paddle.audio.load(str(tmp_path / "a.wav"), normalize=False)[0].tolist() == [[32767.0, 32767.0, -32768.0]]


@pytest.mark.parametrize(("width", "kind"), [(1, "u1"), (2, "<i2"), (4, "<i4")])
def test_widths(tmp_path: Path, width: int, kind: str) -> None:
    path = tmp_path / "a.wav"
    values = np.array([[0.0, 0.5], [-0.5, -1.0]])  # [samples, channels]
    whole = values * 2 ** (8 * width - 1) + (128 if width == 1 else 0)
    with wave.open(str(path), "wb") as file:
        file.setparams((2, width, 44100, 0, "NONE", ""))
        file.writeframes(whole.astype(kind).tobytes())
    assert paddle.audio.load(path)[0].tolist() == values.T.tolist()
    info = paddle.audio.info(path)
    assert (info.sample_rate, info.num_samples, info.num_channels, info.bits_per_sample) == (44100, 2, 2, 8 * width)
    assert info.encoding == ("PCM_U" if width == 1 else "PCM_S")


def test_refusals(tmp_path: Path) -> None:
    path, x = tmp_path / "a.wav", torch.zeros(1, 4)
    for options in ({"bits_per_sample": 8}, {"encoding": "PCM_F"}):
        with pytest.raises(ValueError, match="16 bits of PCM"):
            paddle.audio.save(path, x, 8000, **options)
    with pytest.raises(ValueError, match="two dimensions"):
        paddle.audio.save(path, x[0], 8000)
    with pytest.raises(ValueError, match="int16"):
        paddle.audio.save(path, x.int(), 8000)
    assert not path.exists()
    path.write_bytes(b"no sound")
    with pytest.raises(NotImplementedError, match="no WAV file"):
        paddle.audio.load(path)
    with pytest.raises(FileNotFoundError):
        paddle.audio.info(tmp_path / "b.wav")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 3, 8000, 0, "NONE", ""))
        file.writeframes(b"123")
    with pytest.raises(NotImplementedError, match="24 bits"):
        paddle.audio.load(path)
    with pytest.raises(NotImplementedError, match="soundfile"):
        paddle.audio.backends.set_backend("soundfile")
    with pytest.raises(ValueError, match="must not exceed"):
        paddle.audio.features.MFCC(n_mfcc=80)
