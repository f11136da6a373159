"""Layers around the fused operations: a Transformer's parts with their parameters under Paddle's names."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from oarlock.paddle.declare import exports
from oarlock.paddle.nn.initializer import Constant
from oarlock.paddle.nn.layer.attention import added_mask
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.layer.transformer import attributes

_FUSED = exports("paddle.incubate.nn.functional")


def _refuse_ranks(kind: str, nranks: int) -> None:
    if nranks != 1:
        raise ValueError(f"{kind}(nranks={nranks}): it is not split over processes here; use paddle.distributed")


class FusedLinear(Layer):
    """y = x·W + b.

    Args:
        transpose_weight: the weight is [out_features, in_features].
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        transpose_weight: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        shape = [out_features, in_features] if transpose_weight else [in_features, out_features]
        self.weight = self.create_parameter(shape, weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)
        self.transpose_weight = transpose_weight

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return _FUSED["fused_linear"](input, self.weight, self.bias, self.transpose_weight)


class FusedDropoutAdd(Layer):
    """dropout(x) + y."""

    def __init__(self, p: float = 0.5, mode: str = "upscale_in_train", name: str | None = None) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum, of the inputs' shape."""
        return _FUSED["fused_dropout_add"](x, y, self.p, self.training, self.mode)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"p={self.p}, mode={self.mode}"


class FusedBiasDropoutResidualLayerNorm(Layer):
    """layer_norm(residual + dropout(x + bias))."""

    def __init__(
        self,
        embed_dim: int,
        dropout_rate: float = 0.5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        epsilon: float = 1e-5,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.dropout_rate, self._epsilon = embed_dim, dropout_rate, epsilon
        self.linear_bias = self.create_parameter([embed_dim], bias_attr, is_bias=True)
        self.ln_scale = self.create_parameter([embed_dim], weight_attr, default_initializer=Constant(1.0))
        self.ln_bias = self.create_parameter([embed_dim], bias_attr, is_bias=True)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[B, S, embed_dim], twice -> the same."""
        return _FUSED["fused_bias_dropout_residual_layer_norm"](
            x,
            residual,
            self.linear_bias,
            self.ln_scale,
            self.ln_bias,
            dropout_rate=self.dropout_rate,
            ln_epsilon=self._epsilon,
            training=self.training,
        )


class FusedMultiHeadAttention(Layer):
    """Self-attention with its norm, dropout and sum: x + dropout(out(attention(qkv(x)))).

    Args:
        normalize_before: the norm is before the attention, not behind the sum.
        transpose_qkv_wb: the weight of queries, keys and values is [embed_dim, 3·embed_dim], not
            [3, num_heads, head_dim, embed_dim].
        kdim, vdim: taken; keys and values are made of the queries.

    Raises:
        ValueError: a width that the heads do not divide, `need_weights`, or `nranks` above 1.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout_rate: float = 0.5,
        attn_dropout_rate: float = 0.5,
        kdim: int | None = None,
        vdim: int | None = None,
        normalize_before: bool = False,
        need_weights: bool = False,
        qkv_weight_attr: Any = None,
        qkv_bias_attr: Any = None,
        linear_weight_attr: Any = None,
        linear_bias_attr: Any = None,
        pre_ln_scale_attr: Any = None,
        pre_ln_bias_attr: Any = None,
        ln_scale_attr: Any = None,
        ln_bias_attr: Any = None,
        epsilon: float = 1e-5,
        nranks: int = 1,
        ring_id: int = -1,
        transpose_qkv_wb: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        _refuse_ranks("FusedMultiHeadAttention", nranks)
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} must be a multiple of num_heads = {num_heads}")
        if need_weights:
            raise ValueError("need_weights: the fused attention does not keep its weights; use nn.MultiHeadAttention")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim, self.need_weights = kdim, vdim, need_weights
        self.dropout_rate, self.attn_dropout_rate, self._epsilon = dropout_rate, attn_dropout_rate, epsilon
        self.normalize_before, self.transpose_qkv_wb = normalize_before, transpose_qkv_wb
        heads = [3, num_heads, self.head_dim]
        flat = [3 * embed_dim]
        self.qkv_weight = self.create_parameter(
            [embed_dim, *flat] if transpose_qkv_wb else [*heads, embed_dim], qkv_weight_attr
        )
        self.qkv_bias = self.create_parameter(flat if transpose_qkv_wb else heads, qkv_bias_attr, is_bias=True)
        self.linear_weight = self.create_parameter([embed_dim, embed_dim], linear_weight_attr)
        self.linear_bias = self.create_parameter([embed_dim], linear_bias_attr, is_bias=True)
        self.pre_ln_scale = self.pre_ln_bias = self.ln_scale = self.ln_bias = None
        if normalize_before:
            self.pre_ln_scale, self.pre_ln_bias = _norm(self, embed_dim, pre_ln_scale_attr, pre_ln_bias_attr)
        else:
            self.ln_scale, self.ln_bias = _norm(self, embed_dim, ln_scale_attr, ln_bias_attr)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        cache: Tensor | None = None,
    ) -> Any:
        """[B, S, embed_dim] -> the same; `attn_mask` broadcasts to [B, num_heads, S, S], True (or 0.0) where seen."""
        return _FUSED["fused_multi_head_attention"](
            query,
            self.qkv_weight,
            self.linear_weight,
            self.normalize_before,
            self.pre_ln_scale,
            self.pre_ln_bias,
            self.ln_scale,
            self.ln_bias,
            self._epsilon,
            self.qkv_bias,
            self.linear_bias,
            cache_kv=cache,
            attn_mask=None if attn_mask is None else added_mask(attn_mask, query.dtype),
            dropout_rate=self.dropout_rate,
            attn_dropout_rate=self.attn_dropout_rate,
            ln_epsilon=self._epsilon,
            training=self.training,
            num_heads=self.num_heads,
            transpose_qkv_wb=self.transpose_qkv_wb,
        )

    def extra_repr(self) -> str:
        """The arguments."""
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout_rate={self.dropout_rate}, "
            f"attn_dropout_rate={self.attn_dropout_rate}, epsilon={self._epsilon}, kdim={self.kdim}, "
            f"vdim={self.vdim}, normalize_before={self.normalize_before}, need_weights={self.need_weights}"
        )


class FusedFeedForward(Layer):
    """x + dropout(linear2(dropout(act(linear1(x))))) with its norm.

    Args:
        act_dropout_rate: `dropout_rate` by default.
        normalize_before: the norm is before the first linear layer, not behind the sum.

    Raises:
        ValueError: a size that is not positive, or `nranks` above 1.
    """

    def __init__(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout_rate: float = 0.1,
        epsilon: float = 1e-05,
        activation: str = "relu",
        act_dropout_rate: float | None = None,
        normalize_before: bool = False,
        linear1_weight_attr: Any = None,
        linear1_bias_attr: Any = None,
        linear2_weight_attr: Any = None,
        linear2_bias_attr: Any = None,
        ln1_scale_attr: Any = None,
        ln1_bias_attr: Any = None,
        ln2_scale_attr: Any = None,
        ln2_bias_attr: Any = None,
        nranks: int = 1,
        ring_id: int = -1,
        name: str | None = None,
    ) -> None:
        super().__init__()
        _refuse_ranks("FusedFeedForward", nranks)
        if d_model <= 0 or dim_feedforward <= 0:
            raise ValueError(f"d_model = {d_model} and dim_feedforward = {dim_feedforward} must be positive")
        self._d_model, self._dim_feedforward, self._dropout_rate = d_model, dim_feedforward, dropout_rate
        self._act_dropout_rate = dropout_rate if act_dropout_rate is None else act_dropout_rate
        self._act_method, self._normalize_before, self._epsilon = activation, normalize_before, epsilon
        self._linear1_weight = self.create_parameter([d_model, dim_feedforward], linear1_weight_attr)
        self._linear1_bias = self.create_parameter([dim_feedforward], linear1_bias_attr, is_bias=True)
        self._linear2_weight = self.create_parameter([dim_feedforward, d_model], linear2_weight_attr)
        self._linear2_bias = self.create_parameter([d_model], linear2_bias_attr, is_bias=True)
        self._ln1_scale = self._ln1_bias = self._ln2_scale = self._ln2_bias = None
        if normalize_before:
            self._ln1_scale, self._ln1_bias = _norm(self, d_model, ln1_scale_attr, ln1_bias_attr)
        else:
            self._ln2_scale, self._ln2_bias = _norm(self, d_model, ln2_scale_attr, ln2_bias_attr)

    def forward(self, src: Tensor, cache: Tensor | None = None) -> Tensor:
        """[B, S, d_model] -> the same."""
        return _FUSED["fused_feedforward"](
            src,
            self._linear1_weight,
            self._linear2_weight,
            self._linear1_bias,
            self._linear2_bias,
            self._ln1_scale,
            self._ln1_bias,
            self._ln2_scale,
            self._ln2_bias,
            self._act_dropout_rate,
            self._dropout_rate,
            self._act_method,
            self._epsilon,
            self._epsilon,
            self._normalize_before,
            training=self.training,
        )

    def extra_repr(self) -> str:
        """The arguments."""
        return (
            f"d_model={self._d_model}, dim_feedforward={self._dim_feedforward}, dropout_rate={self._dropout_rate}, "
            f"epsilon={self._epsilon}, activation={self._act_method}, act_dropout_rate={self._act_dropout_rate}, "
            f"normalize_before={self._normalize_before}"
        )


class FusedTransformerEncoderLayer(Layer):
    """`FusedMultiHeadAttention`, then `FusedFeedForward`: what `nn.TransformerEncoderLayer` computes.

    Args:
        attn_dropout_rate, act_dropout_rate: `dropout_rate` by default.
        weight_attr, bias_attr: of all parameters, or two: of the attention's and the feed-forward's.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout_rate: float = 0.1,
        activation: str = "relu",
        attn_dropout_rate: float | None = None,
        act_dropout_rate: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        self.normalize_before = normalize_before
        (weight, weight2), (bias, bias2) = attributes(weight_attr, 2), attributes(bias_attr, 2)
        self.fused_attn = FusedMultiHeadAttention(
            d_model,
            nhead,
            dropout_rate,
            dropout_rate if attn_dropout_rate is None else attn_dropout_rate,
            normalize_before=normalize_before,
            qkv_weight_attr=weight,
            qkv_bias_attr=bias,
            linear_weight_attr=weight,
            linear_bias_attr=bias,
            pre_ln_scale_attr=weight,
            pre_ln_bias_attr=bias,
            ln_scale_attr=weight,
            ln_bias_attr=bias,
        )
        self.ffn = FusedFeedForward(
            d_model,
            dim_feedforward,
            dropout_rate,
            activation=activation,
            act_dropout_rate=act_dropout_rate,
            normalize_before=normalize_before,
            linear1_weight_attr=weight2,
            linear1_bias_attr=bias2,
            linear2_weight_attr=weight2,
            linear2_bias_attr=bias2,
        )

    def forward(self, src: Tensor, src_mask: Tensor | None = None, cache: Tensor | None = None) -> Any:
        """[B, S, d_model] -> the same, and the new cache where one is given."""
        found = self.fused_attn(src, attn_mask=src_mask, cache=cache)
        return self.ffn(found) if cache is None else (self.ffn(found[0]), found[1])


def _norm(layer: Layer, size: int, scale_attr: Any, bias_attr: Any) -> tuple[Any, Any]:
    """Scale and bias of a norm."""
    scale = layer.create_parameter([size], scale_attr, default_initializer=Constant(1.0))
    return scale, layer.create_parameter([size], bias_attr, is_bias=True)
