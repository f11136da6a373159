"""The layers of "Attention is all you need" (Vaswani et al., 2017), post-norm or pre-norm, with caches for decoding.

B batch, S and T steps of encoder and decoder, E d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.nn import functional
from oarlock.paddle.nn.layer.attention import Cache, MultiHeadAttention, StaticCache
from oarlock.paddle.nn.layer.containers import LayerList
from oarlock.paddle.nn.layer.functions import CLASSES
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.layer.norm import LayerNorm
from oarlock.paddle.nn.layer.weighted import Linear

Dropout: Any = CLASSES["Dropout"]


def attributes(given: Any, count: int) -> list[Any]:
    """One for each part; one alone is for all."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) == count:
        return list(given)
    if len(given) == 1:
        return list(given) * count
    raise ValueError(f"attributes of parameters are given for {count} parts, got {len(given)}")


def _given(cache: Any) -> tuple[Any, ...]:
    """Hooks of the attention see a cache among its arguments only where there is one, as in Paddle."""
    return () if cache is None else (cache,)


class _Block(Layer):
    """What encoder and decoder layers have in common: the feed-forward part and sums with norms."""

    attentions: tuple[str, ...] = ("self_attn",)
    self_attn: MultiHeadAttention

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        layer_norm_eps: float = 1e-5,
    ) -> None:
        config = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        super().__init__()
        for name in ("d_model", "nhead", "dim_feedforward"):
            if config[name] <= 0:
                raise ValueError(f"Expected {name} to be greater than 0, but received {config[name]}")
        self._config = config
        self.normalize_before = normalize_before
        num_norms = len(self.attentions) + 1
        weights, biases = attributes(weight_attr, num_norms), attributes(bias_attr, num_norms)
        for name, weight, bias in zip(self.attentions, weights, biases, strict=False):
            setattr(self, name, self._attention(weight, bias))
        self.linear1 = Linear(d_model, dim_feedforward, weights[-1], biases[-1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[-1], biases[-1])
        for i in range(1, num_norms + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps))
        for i in range(1, num_norms + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = getattr(functional, activation)

    def _attention(self, weight_attr: Any, bias_attr: Any) -> MultiHeadAttention:
        config = self._config
        rate = config["dropout"] if config["attn_dropout"] is None else config["attn_dropout"]
        return MultiHeadAttention(
            config["d_model"], config["nhead"], dropout=rate, weight_attr=weight_attr, bias_attr=bias_attr
        )

    def _around(self, number: int, x: Tensor, part: Any) -> tuple[Tensor, Any]:
        """x + dropout(part(x)) with the norm before the part or behind the sum; and what the part gives besides."""
        norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        found = part(norm(x) if self.normalize_before else x)
        found, rest = found if isinstance(found, tuple) else (found, None)
        x = x + drop(found)
        return (x if self.normalize_before else norm(x)), rest

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Block):
    """Self-attention and two linear layers, each with a norm and a sum.

    Args:
        attn_dropout, act_dropout: `dropout` by default.
        normalize_before: norms before the parts, not behind the sums.
        weight_attr, bias_attr: of all linear layers, or a list: of the attention's and the feed-forward's.
    """

    def gen_cache(self, src: Tensor) -> Any:
        """An empty cache."""
        return self.self_attn.gen_cache(src, type=Cache)

    def forward(self, src: Tensor, src_mask: Tensor | None = None, cache: Any = None) -> Any:
        """[B, S, E] -> [B, S, E]; with a cache also the new one."""
        src, new = self._around(1, src, lambda x: self.self_attn(x, x, x, src_mask, *_given(cache)))
        src, _ = self._around(2, src, self._feed_forward)
        return src if cache is None else (src, new)


class TransformerDecoderLayer(_Block):
    """Self-attention, attention to an encoder's output and two linear layers, each with a norm and a sum.

    Args:
        attn_dropout, act_dropout: `dropout` by default.
        normalize_before: norms before the parts, not behind the sums.
        weight_attr, bias_attr: of all linear layers, or a list: of both attentions' and the feed-forward's.
    """

    attentions = ("self_attn", "cross_attn")
    cross_attn: MultiHeadAttention

    def gen_cache(self, memory: Tensor) -> tuple[Any, Any]:
        """(an empty cache, the static one of the encoder's output)."""
        return (
            self.self_attn.gen_cache(memory, type=Cache),
            self.cross_attn.gen_cache(memory, memory, type=StaticCache),
        )

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Any:
        """[B, T, E], [B, S, E] -> [B, T, E]; with a cache also the new one."""
        own, static = (None, None) if cache is None else cache
        tgt, new = self._around(1, tgt, lambda x: self.self_attn(x, x, x, tgt_mask, *_given(own)))
        tgt, _ = self._around(2, tgt, lambda x: self.cross_attn(x, memory, memory, memory_mask, *_given(static)))
        tgt, _ = self._around(3, tgt, self._feed_forward)
        return tgt if cache is None else (tgt, (new, static))


def _copies(layer: Any, count: int) -> LayerList:
    """The layer and others like it, with first values and names of their own."""
    return LayerList([layer, *(type(layer)(**layer._config) for _ in range(count - 1))])


class TransformerEncoder(Layer):
    """`num_layers` layers like the given one, and a norm behind them."""

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def gen_cache(self, src: Tensor) -> list[Any]:
        """An empty cache for each layer."""
        return [layer.gen_cache(src) for layer in self.layers]

    def forward(self, src: Tensor, src_mask: Tensor | None = None, cache: Any = None) -> Any:
        """[B, S, E] -> [B, S, E]; with a cache also the new one."""
        new = []
        for i, layer in enumerate(self.layers):
            if cache is None:
                src = layer(src, src_mask)
            else:
                src, one = layer(src, src_mask, cache[i])
                new.append(one)
        src = src if self.norm is None else self.norm(src)
        return src if cache is None else (src, new)


class TransformerDecoder(Layer):
    """`num_layers` layers like the given one, and a norm behind them."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def gen_cache(self, memory: Tensor, do_zip: bool = False) -> list[Any]:
        """A cache for each layer; with `do_zip` all empty ones and all static ones."""
        made = [layer.gen_cache(memory) for layer in self.layers]
        return list(zip(*made, strict=True)) if do_zip else made

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Any:
        """[B, T, E], [B, S, E] -> [B, T, E]; with a cache also the new one."""
        new = []
        for i, layer in enumerate(self.layers):
            if cache is None:
                tgt = layer(tgt, memory, tgt_mask, memory_mask)
            else:
                tgt, one = layer(tgt, memory, tgt_mask, memory_mask, cache[i])
                new.append(one)
        tgt = tgt if self.norm is None else self.norm(tgt)
        return tgt if cache is None else (tgt, new)


class Transformer(Layer):
    """An encoder and a decoder, each with a norm behind it.

    Args:
        custom_encoder, custom_decoder: in place of them.
        weight_attr, bias_attr: as for the layers; a list of one, two or three.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
    ) -> None:
        super().__init__()
        common = (d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout, normalize_before)
        self.encoder, self.decoder = custom_encoder, custom_decoder
        if custom_encoder is None:
            attrs = _of_encoder(weight_attr), _of_encoder(bias_attr)
            layer = TransformerEncoderLayer(*common, *attrs)
            self.encoder = TransformerEncoder(layer, num_encoder_layers, LayerNorm(d_model))
        if custom_decoder is None:
            layer = TransformerDecoderLayer(*common, weight_attr, bias_attr)
            self.decoder = TransformerDecoder(layer, num_decoder_layers, LayerNorm(d_model))
        self.d_model, self.nhead = d_model, nhead

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """[B, S, E], [B, T, E] -> [B, T, E]."""
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Tensor:
        """[length, length], -inf above the diagonal, 0 elsewhere."""
        return torch.full([length, length], -torch.inf).triu(1)


def _of_encoder(attrs: Sequence[Any] | Any) -> Any:
    """An encoder layer has no cross-attention: of three attributes it takes the first and the last."""
    return [attrs[0], attrs[2]] if isinstance(attrs, (list, tuple)) and len(attrs) == 3 else attrs
