"""Made by `oarlock paddle stubs` from the declarations; do not edit."""

# ruff: noqa
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportOverlappingOverload=false

import builtins
import collections.abc
import numpy
import oarlock.paddle.strict_types
import torch
from typing import Any
from oarlock.paddle import Tensor

from oarlock.paddle.nn.functional import activation as activation
from oarlock.paddle.nn.functional import attention as attention
from oarlock.paddle.nn.functional import convolution as convolution
from oarlock.paddle.nn.functional import extents as extents
from oarlock.paddle.nn.functional import flash_attention as flash_attention
from oarlock.paddle.nn.functional import layers as layers
from oarlock.paddle.nn.functional import loss as loss
from oarlock.paddle.nn.functional import moe as moe
from oarlock.paddle.nn.functional import norm as norm
from oarlock.paddle.nn.functional import pooling as pooling
from oarlock.paddle.nn.functional import resize as resize
from oarlock.paddle.nn.functional import sequence_loss as sequence_loss
from oarlock.paddle.nn.functional import windows as windows

def adaptive_avg_pool1d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def adaptive_avg_pool2d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def adaptive_avg_pool3d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def adaptive_log_softmax_with_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    head_weight: torch.Tensor = ...,
    tail_weights: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]] = ...,
    cutoffs: collections.abc.Sequence[builtins.int] = ...,
    head_bias: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> builtins.tuple[Tensor, Tensor]: ...
def adaptive_max_pool1d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    return_mask: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def adaptive_max_pool2d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    return_mask: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def adaptive_max_pool3d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    return_mask: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def affine_grid(
    theta: torch.Tensor,
    out_shape: Any,
    align_corners: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
) -> Tensor: ...
def alpha_dropout(
    x: torch.Tensor = ...,
    p: builtins.float = ...,
    training: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def avg_pool1d(
    x: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    exclusive: builtins.bool = ...,
    ceil_mode: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def avg_pool2d(
    x: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: builtins.bool = ...,
    exclusive: builtins.bool = ...,
    divisor_override: builtins.float | None = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def avg_pool3d(
    x: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: builtins.bool = ...,
    exclusive: builtins.bool = ...,
    divisor_override: builtins.float | None = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def batch_norm(
    x: torch.Tensor = ...,
    running_mean: torch.Tensor = ...,
    running_var: torch.Tensor = ...,
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    training: builtins.bool = ...,
    momentum: builtins.float = ...,
    epsilon: builtins.float = ...,
    data_format: builtins.str = ...,
    use_global_stats: builtins.bool | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def bilinear(
    x1: torch.Tensor = ...,
    x2: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input1: torch.Tensor = ...,
    input2: torch.Tensor = ...,
) -> Tensor: ...
def binary_cross_entropy(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    weight: torch.Tensor | None = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def binary_cross_entropy_with_logits(
    logit: torch.Tensor = ...,
    label: torch.Tensor = ...,
    weight: torch.Tensor | None = ...,
    reduction: builtins.str = ...,
    pos_weight: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def celu(
    x: torch.Tensor = ...,
    alpha: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def channel_shuffle(
    x: torch.Tensor = ...,
    groups: builtins.int = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def class_center_sample(
    label: torch.Tensor = ...,
    num_classes: builtins.int = ...,
    num_samples: builtins.int = ...,
    group: Any = ...,
    name: builtins.str | None = ...,
    *,
    target: torch.Tensor = ...,
) -> builtins.tuple[Tensor, Tensor]: ...
def conv1d(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: builtins.int = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def conv1d_transpose(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    groups: builtins.int = ...,
    dilation: Any = ...,
    output_size: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def conv2d(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: builtins.int = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def conv2d_transpose(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    dilation: Any = ...,
    groups: builtins.int = ...,
    output_size: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def conv3d(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: builtins.int = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def conv3d_transpose(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    groups: builtins.int = ...,
    dilation: Any = ...,
    output_size: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def cosine_embedding_loss(
    input1: torch.Tensor,
    input2: torch.Tensor,
    label: torch.Tensor = ...,
    margin: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def cosine_similarity(
    x1: torch.Tensor = ...,
    x2: torch.Tensor = ...,
    axis: builtins.int = ...,
    eps: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input1: torch.Tensor = ...,
    input2: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def cross_entropy(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    weight: torch.Tensor | None = ...,
    ignore_index: builtins.int = ...,
    reduction: builtins.str = ...,
    soft_label: builtins.bool = ...,
    axis: builtins.int = ...,
    use_softmax: builtins.bool = ...,
    label_smoothing: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def ctc_loss(
    log_probs: torch.Tensor,
    labels: torch.Tensor = ...,
    input_lengths: torch.Tensor = ...,
    label_lengths: torch.Tensor = ...,
    blank: builtins.int = ...,
    reduction: builtins.str = ...,
    norm_by_times: builtins.bool = ...,
    zero_infinity: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    targets: torch.Tensor = ...,
    target_lengths: torch.Tensor = ...,
) -> Tensor: ...
def diag_embed(
    input: torch.Tensor = ...,
    offset: builtins.int = ...,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
) -> Tensor: ...
def dice_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    epsilon: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def dropout(
    x: torch.Tensor = ...,
    p: Any = ...,
    axis: Any = ...,
    training: builtins.bool = ...,
    inplace: builtins.bool = ...,
    mode: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    dim: Any = ...,
) -> Tensor: ...
def dropout1d(
    input: torch.Tensor = ...,
    p: builtins.float = ...,
    training: builtins.bool = ...,
    inplace: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
) -> Tensor: ...
def dropout2d(
    x: torch.Tensor = ...,
    p: builtins.float = ...,
    training: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def dropout3d(
    x: torch.Tensor = ...,
    p: builtins.float = ...,
    training: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def elu(
    x: torch.Tensor = ...,
    alpha: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def elu_(
    x: torch.Tensor = ..., *args: Any, name: builtins.str | None = ..., input: torch.Tensor = ..., **kwargs: Any
) -> Tensor: ...
def embedding(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    padding_idx: builtins.int | None = ...,
    max_norm: builtins.float | None = ...,
    norm_type: builtins.float = ...,
    sparse: builtins.bool = ...,
    scale_grad_by_freq: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def embedding_renorm_(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    max_norm: builtins.float = ...,
    norm_type: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    input: torch.Tensor = ...,
) -> Tensor: ...
def feature_alpha_dropout(
    x: torch.Tensor = ...,
    p: builtins.float = ...,
    training: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def flash_attention_v3_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    seqused_q: torch.Tensor | None = ...,
    seqused_k: torch.Tensor | None = ...,
    softmax_scale: builtins.float | None = ...,
    causal: builtins.bool = ...,
    qv: torch.Tensor | None = ...,
    q_descale: torch.Tensor | None = ...,
    k_descale: torch.Tensor | None = ...,
    v_descale: torch.Tensor | None = ...,
    window_size: builtins.tuple[builtins.int, builtins.int] = ...,
    softcap: builtins.float = ...,
    num_splits: builtins.int = ...,
    pack_gqa: builtins.bool | None = ...,
    sm_margin: builtins.int = ...,
    name: builtins.str | None = ...,
) -> builtins.tuple[Tensor, Tensor]: ...
def flash_attn_qkvpacked(
    qkv: torch.Tensor,
    dropout: builtins.float = ...,
    causal: builtins.bool = ...,
    return_softmax: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    fixed_seed_offset: torch.Tensor | None = ...,
    rng_name: builtins.str = ...,
    training: builtins.bool = ...,
) -> builtins.tuple[Tensor, Tensor | None]: ...
def flash_attn_varlen_qkvpacked(
    qkv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    scale: builtins.float,
    dropout: builtins.float = ...,
    causal: builtins.bool = ...,
    return_softmax: builtins.bool = ...,
    fixed_seed_offset: torch.Tensor | None = ...,
    rng_name: builtins.str = ...,
    varlen_padded: builtins.bool = ...,
    training: builtins.bool = ...,
    name: builtins.str | None = ...,
) -> builtins.tuple[Tensor, None]: ...
def flashmask_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    startend_row_indices: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    dropout: builtins.float = ...,
    causal: builtins.bool = ...,
    window_size: builtins.int | builtins.tuple[builtins.int, builtins.int] | None = ...,
    return_softmax_lse: builtins.bool = ...,
    return_seed_offset: builtins.bool = ...,
    fixed_seed_offset: torch.Tensor | None = ...,
    rng_name: builtins.str = ...,
    training: builtins.bool = ...,
    softmax_scale: builtins.float | None = ...,
    block_mask: torch.Tensor | None = ...,
) -> Any: ...
def fold(
    x: torch.Tensor = ...,
    output_sizes: Any = ...,
    kernel_sizes: Any = ...,
    strides: Any = ...,
    paddings: Any = ...,
    dilations: Any = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    output_size: Any = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
) -> Tensor: ...
def fractional_max_pool2d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    kernel_size: Any = ...,
    random_u: builtins.float | None = ...,
    return_mask: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def fractional_max_pool3d(
    x: torch.Tensor = ...,
    output_size: Any = ...,
    kernel_size: Any = ...,
    random_u: builtins.float | None = ...,
    return_mask: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def gather_tree(
    ids: torch.Tensor, parents: torch.Tensor, name: builtins.str | None = ..., *, out: Any = ...
) -> Tensor: ...
def gaussian_nll_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    variance: torch.Tensor = ...,
    full: builtins.bool = ...,
    epsilon: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
    var: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def gelu(
    x: torch.Tensor = ...,
    approximate: Any = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def glu(
    x: torch.Tensor = ...,
    axis: builtins.int = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def grid_sample(
    x: torch.Tensor = ...,
    grid: torch.Tensor = ...,
    mode: builtins.str = ...,
    padding_mode: builtins.str = ...,
    align_corners: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def group_norm(
    x: torch.Tensor = ...,
    num_groups: builtins.int = ...,
    epsilon: builtins.float = ...,
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def gumbel_softmax(
    x: torch.Tensor = ...,
    temperature: builtins.float = ...,
    hard: builtins.bool = ...,
    axis: builtins.int = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    tau: builtins.float = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def hardshrink(
    x: torch.Tensor = ...,
    threshold: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    lambd: builtins.float = ...,
) -> Tensor: ...
def hardsigmoid(
    x: torch.Tensor = ...,
    slope: builtins.float = ...,
    offset: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def hardswish(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def hardtanh(
    x: torch.Tensor = ...,
    min: builtins.float = ...,
    max: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    min_val: builtins.float = ...,
    max_val: builtins.float = ...,
) -> Tensor: ...
def hardtanh_(
    x: torch.Tensor = ..., *args: Any, name: builtins.str | None = ..., input: torch.Tensor = ..., **kwargs: Any
) -> Tensor: ...
def hinge_embedding_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    margin: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def hsigmoid_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    num_classes: builtins.int = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    path_table: torch.Tensor | None = ...,
    path_code: torch.Tensor | None = ...,
    is_sparse: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def instance_norm(
    x: torch.Tensor = ...,
    running_mean: torch.Tensor | None = ...,
    running_var: torch.Tensor | None = ...,
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    use_input_stats: builtins.bool = ...,
    momentum: builtins.float = ...,
    eps: builtins.float = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def interpolate(
    x: torch.Tensor = ...,
    size: Any = ...,
    scale_factor: Any = ...,
    mode: builtins.str = ...,
    align_corners: builtins.bool = ...,
    align_mode: builtins.int = ...,
    data_format: builtins.str | None = ...,
    recompute_scale_factor: builtins.bool | None = ...,
    antialias: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def kl_div(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    reduction: builtins.str = ...,
    log_target: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def l1_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def label_smooth(
    label: torch.Tensor = ...,
    prior_dist: torch.Tensor | None = ...,
    epsilon: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    target: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def layer_norm(
    x: torch.Tensor = ...,
    normalized_shape: Any = ...,
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    epsilon: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def leaky_relu(
    x: torch.Tensor = ...,
    negative_slope: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def leaky_relu_(
    x: torch.Tensor = ..., *args: Any, name: builtins.str | None = ..., input: torch.Tensor = ..., **kwargs: Any
) -> Tensor: ...
def linear(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    bias: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def local_response_norm(
    x: torch.Tensor = ...,
    size: builtins.int = ...,
    alpha: builtins.float = ...,
    beta: builtins.float = ...,
    k: builtins.float = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def log_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    epsilon: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def log_sigmoid(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def log_softmax(
    x: torch.Tensor = ...,
    axis: builtins.int = ...,
    dtype: torch.dtype
    | builtins.str
    | builtins.type
    | numpy.dtype[Any]
    | oarlock.paddle.strict_types.StrictDType
    | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def logsigmoid(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def lp_pool1d(
    x: torch.Tensor = ...,
    norm_type: builtins.float = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def lp_pool2d(
    x: torch.Tensor = ...,
    norm_type: builtins.float = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def margin_cross_entropy(
    logits: torch.Tensor = ...,
    label: torch.Tensor = ...,
    margin1: builtins.float = ...,
    margin2: builtins.float = ...,
    margin3: builtins.float = ...,
    scale: builtins.float = ...,
    group: Any = ...,
    return_softmax: builtins.bool = ...,
    reduction: builtins.str | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Any: ...
def margin_ranking_loss(
    input: torch.Tensor = ...,
    other: torch.Tensor = ...,
    label: torch.Tensor = ...,
    margin: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def max_pool1d(
    x: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    return_mask: builtins.bool = ...,
    ceil_mode: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def max_pool2d(
    x: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    return_mask: builtins.bool = ...,
    ceil_mode: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def max_pool3d(
    x: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    return_mask: builtins.bool = ...,
    ceil_mode: builtins.bool = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    return_indices: builtins.bool = ...,
) -> Any: ...
def max_unpool1d(
    x: torch.Tensor = ...,
    indices: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    data_format: builtins.str = ...,
    output_size: Any = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def max_unpool2d(
    x: torch.Tensor = ...,
    indices: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    data_format: builtins.str = ...,
    output_size: Any = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def max_unpool3d(
    x: torch.Tensor = ...,
    indices: torch.Tensor = ...,
    kernel_size: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    data_format: builtins.str = ...,
    output_size: Any = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def maxout(
    x: torch.Tensor = ...,
    groups: builtins.int = ...,
    axis: builtins.int = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def mish(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def moe_permute(
    hidden_states: torch.Tensor,
    scale: torch.Tensor | None,
    expert_routemap_topk: torch.Tensor,
    expert_prob_topk: torch.Tensor,
    num_experts: builtins.int,
    tokens_per_expert: Any,
    padding_alignment: builtins.int,
    do_gather: builtins.bool = ...,
    using_ue8m0_scale: builtins.bool = ...,
    return_expert_indices: builtins.bool = ...,
    override_buffer_size: builtins.int = ...,
    name: builtins.str | None = ...,
) -> Any: ...
def moe_unpermute(
    hidden_states_unzipped: torch.Tensor,
    zipped_expertwise_rowmap: torch.Tensor,
    expert_routemap_topk: torch.Tensor,
    token_prob_unzipped: torch.Tensor,
    total_zipped_tokens: builtins.int,
    num_experts: builtins.int,
    using_mix_precision: builtins.bool = ...,
    using_weighted_combine: builtins.bool = ...,
    name: builtins.str | None = ...,
) -> builtins.tuple[Tensor, Tensor]: ...
def mse_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def multi_label_margin_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def multi_label_soft_margin_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    weight: torch.Tensor | None = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def multi_margin_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    p: builtins.int = ...,
    margin: builtins.float = ...,
    weight: torch.Tensor | None = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def nll_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    weight: torch.Tensor | None = ...,
    ignore_index: builtins.int = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def normalize(
    x: torch.Tensor = ...,
    p: builtins.float = ...,
    axis: builtins.int = ...,
    epsilon: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    dim: builtins.int = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def npair_loss(
    anchor: torch.Tensor,
    positive: torch.Tensor,
    labels: torch.Tensor,
    l2_reg: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
) -> Tensor: ...
def one_hot(
    x: torch.Tensor = ...,
    num_classes: builtins.int = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def pad(
    x: torch.Tensor = ...,
    pad: Any = ...,
    mode: builtins.str = ...,
    value: builtins.float = ...,
    data_format: builtins.str | None = ...,
    pad_from_left_axis: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def pairwise_distance(
    x: torch.Tensor = ...,
    y: torch.Tensor = ...,
    p: builtins.float = ...,
    epsilon: builtins.float = ...,
    keepdim: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x1: torch.Tensor = ...,
    x2: torch.Tensor = ...,
    eps: builtins.float = ...,
    keepdims: builtins.bool = ...,
) -> Tensor: ...
def pdist(
    x: torch.Tensor = ...,
    p: builtins.float = ...,
    compute_mode: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def pixel_shuffle(
    x: torch.Tensor = ...,
    upscale_factor: builtins.int = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def pixel_unshuffle(
    x: torch.Tensor = ...,
    downscale_factor: builtins.int = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def poisson_nll_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    log_input: builtins.bool = ...,
    full: builtins.bool = ...,
    epsilon: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def prelu(
    x: torch.Tensor = ...,
    weight: torch.Tensor = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def relu(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def relu6(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def relu_(
    x: torch.Tensor = ..., *args: Any, name: builtins.str | None = ..., input: torch.Tensor = ..., **kwargs: Any
) -> Tensor: ...
def rms_norm(
    input: torch.Tensor = ...,
    normalized_shape: Any = ...,
    weight: torch.Tensor | None = ...,
    eps: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
) -> Tensor: ...
def rnnt_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    input_lengths: torch.Tensor = ...,
    label_lengths: torch.Tensor = ...,
    blank: builtins.int = ...,
    fastemit_lambda: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def rrelu(
    x: torch.Tensor = ...,
    lower: builtins.float = ...,
    upper: builtins.float = ...,
    training: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = ...,
    dropout_p: builtins.float = ...,
    is_causal: builtins.bool = ...,
    training: builtins.bool = ...,
    backend: builtins.str | None = ...,
    scale: builtins.float | None = ...,
    enable_gqa: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
) -> Tensor: ...
def sdp_kernel(
    enable_math: builtins.bool = ...,
    enable_flash: builtins.bool = ...,
    enable_mem_efficient: builtins.bool = ...,
    name: builtins.str | None = ...,
) -> collections.abc.Iterator[None]: ...
def selu(
    x: torch.Tensor = ...,
    scale: builtins.float = ...,
    alpha: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def sequence_mask(
    x: torch.Tensor = ...,
    maxlen: Any = ...,
    dtype: torch.dtype
    | builtins.str
    | builtins.type
    | numpy.dtype[Any]
    | oarlock.paddle.strict_types.StrictDType = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def sigmoid(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def sigmoid_focal_loss(
    logit: torch.Tensor,
    label: torch.Tensor = ...,
    normalizer: torch.Tensor | None = ...,
    alpha: builtins.float = ...,
    gamma: builtins.float = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def silu(
    x: torch.Tensor = ...,
    inplace: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def smooth_l1_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    reduction: builtins.str = ...,
    delta: builtins.float = ...,
    is_huber: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def soft_margin_loss(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def softmax(
    x: torch.Tensor = ...,
    axis: builtins.int = ...,
    dtype: torch.dtype
    | builtins.str
    | builtins.type
    | numpy.dtype[Any]
    | oarlock.paddle.strict_types.StrictDType
    | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Tensor: ...
def softmax_(
    x: torch.Tensor = ..., *args: Any, name: builtins.str | None = ..., input: torch.Tensor = ..., **kwargs: Any
) -> Tensor: ...
def softmax_with_cross_entropy(
    logits: torch.Tensor = ...,
    label: torch.Tensor = ...,
    soft_label: builtins.bool = ...,
    ignore_index: builtins.int = ...,
    numeric_stable_mode: builtins.bool = ...,
    return_softmax: builtins.bool = ...,
    axis: builtins.int = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    target: torch.Tensor = ...,
    dim: builtins.int = ...,
) -> Any: ...
def softplus(
    x: torch.Tensor = ...,
    beta: builtins.float = ...,
    threshold: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def softshrink(
    x: torch.Tensor = ...,
    threshold: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    lambd: builtins.float = ...,
) -> Tensor: ...
def softsign(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_csr_offset: torch.Tensor,
    sparse_csr_columns: torch.Tensor,
    key_padding_mask: torch.Tensor | None = ...,
    attn_mask: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
) -> Tensor: ...
def square_error_cost(
    input: torch.Tensor = ...,
    label: torch.Tensor = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    x: torch.Tensor = ...,
    target: torch.Tensor = ...,
) -> Tensor: ...
def swiglu(
    x: torch.Tensor = ...,
    y: torch.Tensor | None = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
    other: torch.Tensor | None = ...,
) -> Tensor: ...
def swish(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def tanh(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def tanh_(x: torch.Tensor = ..., name: builtins.str | None = ..., *, input: torch.Tensor = ...) -> Tensor: ...
def tanhshrink(
    x: torch.Tensor = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...
) -> Tensor: ...
def temporal_shift(
    x: torch.Tensor = ...,
    seg_num: builtins.int = ...,
    shift_ratio: builtins.float = ...,
    name: builtins.str | None = ...,
    data_format: builtins.str = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def thresholded_relu(
    x: torch.Tensor = ...,
    threshold: builtins.float = ...,
    value: builtins.float = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def thresholded_relu_(
    x: torch.Tensor = ..., *args: Any, name: builtins.str | None = ..., input: torch.Tensor = ..., **kwargs: Any
) -> Tensor: ...
def triplet_margin_loss(
    input: torch.Tensor = ...,
    positive: torch.Tensor = ...,
    negative: torch.Tensor = ...,
    margin: builtins.float = ...,
    p: builtins.float = ...,
    epsilon: builtins.float = ...,
    swap: builtins.bool = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    anchor: torch.Tensor = ...,
    eps: builtins.float = ...,
) -> Tensor: ...
def triplet_margin_with_distance_loss(
    input: torch.Tensor = ...,
    positive: torch.Tensor = ...,
    negative: torch.Tensor = ...,
    distance_function: collections.abc.Callable[..., torch.Tensor] | None = ...,
    margin: builtins.float = ...,
    swap: builtins.bool = ...,
    reduction: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    anchor: torch.Tensor = ...,
) -> Tensor: ...
def unfold(
    x: torch.Tensor,
    kernel_sizes: Any,
    strides: Any = ...,
    paddings: Any = ...,
    dilations: Any = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
) -> Tensor: ...
def upsample(
    x: torch.Tensor = ...,
    size: Any = ...,
    scale_factor: Any = ...,
    mode: builtins.str = ...,
    align_corners: builtins.bool = ...,
    align_mode: builtins.int = ...,
    data_format: builtins.str | None = ...,
    recompute_scale_factor: builtins.bool | None = ...,
    antialias: builtins.bool = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
def zeropad2d(
    x: torch.Tensor = ...,
    padding: Any = ...,
    data_format: builtins.str = ...,
    name: builtins.str | None = ...,
    *,
    out: Any = ...,
    input: torch.Tensor = ...,
) -> Tensor: ...
