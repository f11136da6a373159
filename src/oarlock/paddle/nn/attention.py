"""`paddle.nn.attention`: which kernels `scaled_dot_product_attention` may take; torch's own switch."""

from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["SDPBackend", "sdpa_kernel"]
