"""Language models: one decoder for several families, and Hugging Face folders."""

from oarlock.models.attention import KVCache
from oarlock.models.config import DecoderConfig
from oarlock.models.decoder import Decoder
from oarlock.models.families import FAMILIES
from oarlock.models.hf import load, read_config, save

__all__ = ["FAMILIES", "Decoder", "DecoderConfig", "KVCache", "load", "read_config", "save"]
