"""Generation: a key/value cache, sampling and the loop that turns prompts into tokens."""

from .cache import KeyValueCache
from .generate import generate
from .sampling import Sampler, Sampling, filter_logits
from .tokens import TextStream

__all__ = ["KeyValueCache", "Sampler", "Sampling", "TextStream", "filter_logits", "generate"]
