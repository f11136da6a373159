"""Oarlock: PyTorch-native parts for training large models and taking them to inference.

Every part is usable alone, on plain tensors and modules: `from oarlock.attention import flashmask_attention`.
"""

__version__ = "0.1.0"
