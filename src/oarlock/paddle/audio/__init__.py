"""`paddle.audio`: functions and features of sound, and WAV files."""

from oarlock.paddle.audio import backends, features, functional, wave_files
from oarlock.paddle.declare import exports

globals().update(exports(wave_files.AT))
__all__ = ["backends", "features", "functional", "wave_files"]
