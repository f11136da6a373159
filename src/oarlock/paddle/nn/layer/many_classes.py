"""Losses over many classes with weights of their own: a tree of sigmoids, and clusters of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.nn import functional
from oarlock.paddle.nn.layer.containers import LayerList, ParameterList
from oarlock.paddle.nn.layer.layers import Layer


class HSigmoidLoss(Layer):
    """`paddle.nn.functional.hsigmoid_loss` with its weights.

    Args:
        feature_size: D of the inputs [N, D].
        num_classes: of the default tree; with `is_custom` the number of inner nodes.
        is_custom: `forward` is given the paths.
        is_sparse: taken; gradients are dense.
    """

    def __init__(
        self,
        feature_size: int,
        num_classes: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        is_custom: bool = False,
        is_sparse: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2 and not is_custom:
            raise ValueError(f"num_classes must not be less than 2 with default tree, got {num_classes}")
        self._num_classes, self._is_custom = num_classes, is_custom
        nodes = num_classes if is_custom else num_classes - 1
        self.weight = self.create_parameter([nodes, feature_size], weight_attr)
        self.bias = self.create_parameter([nodes, 1], bias_attr, is_bias=True)

    def forward(
        self, input: Tensor, label: Tensor, path_table: Tensor | None = None, path_code: Tensor | None = None
    ) -> Tensor:
        """[N, D], [N] or [N, 1] -> [N, 1]."""
        if self._is_custom and (path_table is None or path_code is None):
            raise ValueError("path_table and path_code should be given to a layer with is_custom=True")
        assert self.weight is not None
        return functional.hsigmoid_loss(
            input, label, self._num_classes, self.weight, self.bias, path_table, path_code
        )  # fmt: skip


class AdaptiveLogSoftmaxWithLoss(Layer):
    """Frequent classes by one softmax, seldom ones by clusters with smaller weights.

    The weights of the clusters are parameters here; in Paddle 3.3.1 they are neither trained nor saved.

    Args:
        in_features: D.
        n_classes: classes in all.
        cutoffs: where the clusters begin, increasing.
        div_value: cluster i works with D / div_value^(i+1) features.
        head_bias: a bias for the frequent classes.

    Source: Grave et al. 2017.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        weight_attr: Any = None,
        bias_attr: Any = None,
        div_value: float = 4.0,
        head_bias: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        bounds = [int(each) for each in cutoffs]
        if bounds != sorted(set(bounds)) or min(bounds) <= 0 or max(bounds) >= n_classes:
            raise ValueError(f"cutoffs must be unique, increasing and within (0, {n_classes}), got {list(cutoffs)}")
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*bounds, n_classes]
        self.div_value, self.is_head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = bounds[0], len(bounds)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head_weight = self.create_parameter([in_features, self.head_size], weight_attr)
        self.head_bias = self.create_parameter([self.head_size], bias_attr if head_bias else False, is_bias=True)
        self.tail_weights = LayerList()
        for i in range(self.n_clusters):
            inner = int(in_features // div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            made = [self.create_parameter(shape, weight_attr) for shape in ([in_features, inner], [inner, size])]
            self.tail_weights.append(ParameterList(made))  # type: ignore[arg-type]

    def forward(self, input: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability of each label, the mean loss)."""
        assert self.head_weight is not None
        return functional.adaptive_log_softmax_with_loss(
            input, label, self.head_weight, [list(each) for each in self.tail_weights], self.cutoffs, self.head_bias
        )

    def log_prob(self, input: Tensor) -> Tensor:
        """[N, D] -> log-probabilities of all classes, [N, n_classes]."""
        assert self.head_weight is not None
        head = input @ self.head_weight
        log_head = (head if self.head_bias is None else head + self.head_bias).log_softmax(1)
        parts = [log_head[:, : self.shortlist_size]]
        for i, (project, weight) in enumerate(self.tail_weights):
            cluster = log_head[:, self.shortlist_size + i, None]
            parts.append((input @ project @ weight).log_softmax(1) + cluster)
        return torch.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """[N, D] -> the most probable class, [N]."""
        return self.log_prob(input).argmax(1)
