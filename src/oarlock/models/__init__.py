"""Language models: one decoder for several families, and Hugging Face folders."""

from oarlock.models.attention import KVCache
from oarlock.models.config import DecoderConfig
from oarlock.models.decoder import Decoder
from oarlock.models.families import FAMILIES
from oarlock.models.hf import load, load_sharded, read_config, save
from oarlock.models.program import family_program, weights_program

__all__ = [
    "FAMILIES",
    "Decoder",
    "DecoderConfig",
    "KVCache",
    "family_program",
    "load",
    "load_sharded",
    "read_config",
    "save",
    "weights_program",
]
