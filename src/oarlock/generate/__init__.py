"""Generation: a key/value cache, sampling and the loop that turns prompts into tokens."""

from oarlock.generate.cache import KeyValueCache
from oarlock.generate.loop import generate
from oarlock.generate.sampling import Sampler, Sampling, filter_logits
from oarlock.generate.tokens import TextStream

__all__ = ["KeyValueCache", "Sampler", "Sampling", "TextStream", "filter_logits", "generate"]
