# ruff: noqa: E501 - a line of the tables is a class
"""Layers without parameters: each a function of `paddle.nn.functional` whose further arguments are given beforehand.

One line of the tables makes a class: its name, the function, how many tensors `forward` takes, and those of the
function's arguments that the class takes, in its order with its defaults (`name=default`, bare where it must be given).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oarlock.paddle.nn import functional
from oarlock.paddle.nn.layer.layers import Layer

# class, function, tensors, arguments
TABLE = """
CELU celu 1 alpha=1.0
ELU elu 1 alpha=1.0
GELU gelu 1 approximate=False
GLU glu 1 axis=-1
Hardshrink hardshrink 1 threshold=0.5
Hardsigmoid hardsigmoid 1
Hardswish hardswish 1
Hardtanh hardtanh 1 min=-1.0 max=1.0
LeakyReLU leaky_relu 1 negative_slope=0.01
LogSigmoid log_sigmoid 1
LogSoftmax log_softmax 1 axis=-1
Maxout maxout 1 groups axis=1
Mish mish 1
ReLU relu 1
ReLU6 relu6 1
SELU selu 1 scale=1.0507009873554805 alpha=1.6732632423543772
Sigmoid sigmoid 1
Silu silu 1 inplace=False
Softmax softmax 1 axis=-1
Softplus softplus 1 beta=1 threshold=20
Softshrink softshrink 1 threshold=0.5
Softsign softsign 1
Swish swish 1
Tanh tanh 1
Tanhshrink tanhshrink 1
ThresholdedReLU thresholded_relu 1 threshold=1.0 value=0.0
ChannelShuffle channel_shuffle 1 groups data_format="NCHW"
PixelShuffle pixel_shuffle 1 upscale_factor data_format="NCHW"
PixelUnshuffle pixel_unshuffle 1 downscale_factor data_format="NCHW"
LocalResponseNorm local_response_norm 1 size alpha=0.0001 beta=0.75 k=1.0 data_format="NCHW"
CosineSimilarity cosine_similarity 2 axis=1 eps=1e-08
PairwiseDistance pairwise_distance 2 p=2.0 epsilon=1e-06 keepdim=False
Unfold unfold 1 kernel_sizes dilations=1 paddings=0 strides=1
Fold fold 1 output_sizes kernel_sizes dilations=1 paddings=0 strides=1
Upsample interpolate 1 size=None scale_factor=None mode="nearest" align_corners=False align_mode=0 data_format=None recompute_scale_factor=None
AvgPool1D avg_pool1d 1 kernel_size stride=None padding=0 exclusive=True ceil_mode=False
AvgPool2D avg_pool2d 1 kernel_size stride=None padding=0 ceil_mode=False exclusive=True divisor_override=None data_format="NCHW"
AvgPool3D avg_pool3d 1 kernel_size stride=None padding=0 ceil_mode=False exclusive=True divisor_override=None data_format="NCDHW"
MaxPool1D max_pool1d 1 kernel_size stride=None padding=0 return_mask=False ceil_mode=False
MaxPool2D max_pool2d 1 kernel_size stride=None padding=0 return_mask=False ceil_mode=False data_format="NCHW"
MaxPool3D max_pool3d 1 kernel_size stride=None padding=0 return_mask=False ceil_mode=False data_format="NCDHW"
MaxUnPool1D max_unpool1d 2 kernel_size stride=None padding=0 data_format="NCL" output_size=None
MaxUnPool2D max_unpool2d 2 kernel_size stride=None padding=0 data_format="NCHW" output_size=None
MaxUnPool3D max_unpool3d 2 kernel_size stride=None padding=0 data_format="NCDHW" output_size=None
AdaptiveAvgPool1D adaptive_avg_pool1d 1 output_size
AdaptiveAvgPool2D adaptive_avg_pool2d 1 output_size data_format="NCHW"
AdaptiveAvgPool3D adaptive_avg_pool3d 1 output_size data_format="NCDHW"
AdaptiveMaxPool1D adaptive_max_pool1d 1 output_size return_mask=False
AdaptiveMaxPool2D adaptive_max_pool2d 1 output_size return_mask=False
AdaptiveMaxPool3D adaptive_max_pool3d 1 output_size return_mask=False
FractionalMaxPool2D fractional_max_pool2d 1 output_size kernel_size=None random_u=None return_mask=False
FractionalMaxPool3D fractional_max_pool3d 1 output_size kernel_size=None random_u=None return_mask=False
LPPool1D lp_pool1d 1 norm_type kernel_size stride=None padding=0 ceil_mode=False data_format="NCL"
LPPool2D lp_pool2d 1 norm_type kernel_size stride=None padding=0 ceil_mode=False data_format="NCHW"
MSELoss mse_loss 2 reduction="mean"
L1Loss l1_loss 2 reduction="mean"
SmoothL1Loss smooth_l1_loss 2 reduction="mean" delta=1.0 is_huber=True
KLDivLoss kl_div 2 reduction="mean" log_target=False
BCELoss binary_cross_entropy 2 weight=None reduction="mean"
BCEWithLogitsLoss binary_cross_entropy_with_logits 2 weight=None reduction="mean" pos_weight=None
NLLLoss nll_loss 2 weight=None ignore_index=-100 reduction="mean"
PoissonNLLLoss poisson_nll_loss 2 log_input=True full=False epsilon=1e-08 reduction="mean"
GaussianNLLLoss gaussian_nll_loss 3 full=False epsilon=1e-06 reduction="mean"
CrossEntropyLoss cross_entropy 2 weight=None ignore_index=-100 reduction="mean" soft_label=False axis=-1 use_softmax=True label_smoothing=0.0
CTCLoss ctc_loss 4 blank=0 reduction="mean" zero_infinity=False
RNNTLoss rnnt_loss 4 blank=0 fastemit_lambda=0.001 reduction="mean"
MarginRankingLoss margin_ranking_loss 3 margin=0.0 reduction="mean"
SoftMarginLoss soft_margin_loss 2 reduction="mean"
MultiLabelSoftMarginLoss multi_label_soft_margin_loss 2 weight=None reduction="mean"
MultiLabelMarginLoss multi_label_margin_loss 2 reduction="mean"
MultiMarginLoss multi_margin_loss 2 p=1 margin=1.0 weight=None reduction="mean"
HingeEmbeddingLoss hinge_embedding_loss 2 margin=1.0 reduction="mean"
CosineEmbeddingLoss cosine_embedding_loss 3 margin=0 reduction="mean"
TripletMarginLoss triplet_margin_loss 3 margin=1.0 p=2.0 epsilon=1e-06 swap=False reduction="mean"
TripletMarginWithDistanceLoss triplet_margin_with_distance_loss 3 distance_function=None margin=1.0 swap=False reduction="mean"
"""
# Functions of a layer that is training; they are told so.
TRAINING = """
Dropout dropout 1 p=0.5 inplace=False axis=None mode="upscale_in_train"
Dropout2D dropout2d 1 p=0.5 data_format="NCHW"
Dropout3D dropout3d 1 p=0.5 data_format="NCDHW"
AlphaDropout alpha_dropout 1 p=0.5
FeatureAlphaDropout feature_alpha_dropout 1 p=0.5
RReLU rrelu 1 lower=0.125 upper=0.3333333333333333
"""
# What is printed where it is not all arguments: `x!` where it is not the default, `x?` where it is not None, `x=y` the
# argument y under the name x. Classes are those whose names begin so.
PRINTED = """
ChannelShuffle groups data_format!
PixelShuffle upscale_factor data_format!
PixelUnshuffle downscale_factor data_format!
LocalResponseNorm size alpha beta k data_format!
PairwiseDistance p epsilon! keepdim!
Unfold kernel_size=kernel_sizes dilation=dilations padding=paddings stride=strides
Fold kernel_size=kernel_sizes dilation=dilations padding=paddings stride=strides
Upsample size? scale_factor? mode align_corners align_mode data_format
AvgPool kernel_size stride padding
MaxPool kernel_size stride padding
MaxUnPool output_size
AdaptiveAvgPool output_size
AdaptiveMaxPool output_size return_mask
FractionalMaxPool output_size return_mask
LPPool norm_type kernel_size stride padding
Dropout2D p data_format
Dropout3D p data_format
Dropout p axis mode inplace
"""
SPELLED_TWICE = """
AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d LPPool1d LPPool2d
CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d
ReplicationPad1d ReplicationPad2d ReplicationPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d ZeroPad1d ZeroPad2d ZeroPad3d
UpsamplingNearest2d UpsamplingBilinear2d
"""


def _made(name: str, function: Callable[..., Any], count: int, words: list[str], *, training: bool) -> type[Layer]:
    parameter = inspect.Parameter
    own = [parameter("self", parameter.POSITIONAL_OR_KEYWORD)]
    for word in words:
        key, has_default, text = word.partition("=")
        default = eval(text) if has_default else parameter.empty
        own.append(parameter(key, parameter.POSITIONAL_OR_KEYWORD, default=default))
    own.append(parameter("name", parameter.POSITIONAL_OR_KEYWORD, default=None))
    signature = inspect.Signature(own)
    taken = set(inspect.signature(function).parameters)
    printed = _printed(name)
    everything = [(key, key, "") for key in (word.partition("=")[0] for word in words)]

    def __init__(self: Layer, *args: Any, **kwargs: Any) -> None:
        Layer.__init__(self)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = {key: value for key, value in bound.arguments.items() if key not in ("self", "name")}
        reductions = ("mean", "sum", "none", *(["batchmean"] if name == "KLDivLoss" else []))
        if given.get("reduction", "mean") not in reductions:
            raise ValueError(f"{name}: reduction = {given['reduction']!r} must be one of {', '.join(reductions)}")
        self.__dict__["_name"] = bound.arguments["name"]
        # `inplace` is a promise about memory, which the values do not depend on.
        self.__dict__["_given"] = {key: value for key, value in given.items() if key in taken or key != "inplace"}
        for key, value in given.items():
            setattr(self, key, value)

    def forward(self: Any, *tensors: Any, **more: Any) -> Any:
        if training:
            more["training"] = self.training
        return function(*tensors, **self._given, **more)

    def extra_repr(self: Any) -> str:
        parts = []
        for key, source, condition in everything if printed is None else printed:
            value, default = getattr(self, source), signature.parameters[source].default
            if not (condition == "!" and value == default) and not (condition == "?" and value is None):
                parts.append(f"{key}={value}")
        return ", ".join([*parts, *([f"name={self._name}"] if self._name else [])])

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    text = f"`paddle.nn.functional.{function.__name__}` as a layer."
    body = {"__init__": __init__, "forward": forward, "extra_repr": extra_repr, "__doc__": text, "__module__": __name__}
    return type(name, (Layer,), body)


def _printed(name: str) -> list[tuple[str, str, str]] | None:
    """(name, argument, condition) of what the class prints; None for all arguments. Losses print nothing."""
    if name.endswith("Loss"):
        return []
    for line in PRINTED.strip().splitlines():
        start, *words = line.split()
        if name.startswith(start):
            found = []
            for word in words:
                key, _, source = word.rstrip("!?").partition("=")
                found.append((key, source or key, word[-1] if word[-1] in "!?" else ""))
            return found
    return None


def _classes() -> dict[str, type[Layer]]:
    found = {}
    for table, training in ((TABLE, False), (TRAINING, True)):
        for line in table.strip().splitlines():
            name, function, count, *words = line.split()
            found[name] = _made(name, getattr(functional, function), int(count), words, training=training)
    return found


class Identity(Layer):
    """What it is given; further arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """The input."""
        return input


class Flatten(Layer):
    """Join the dimensions from `start_axis` to `stop_axis`."""

    def __init__(self, start_axis: int = 1, stop_axis: int = -1) -> None:
        super().__init__()
        self.start_axis, self.stop_axis = start_axis, stop_axis

    def forward(self, input: Any) -> Any:
        """Flattened."""
        return input.flatten(self.start_axis, self.stop_axis)


class Unflatten(Layer):
    """Part a dimension into several."""

    def __init__(self, axis: int, shape: Any, name: str | None = None) -> None:
        super().__init__()
        self.axis, self.shape = axis, shape

    def forward(self, x: Any) -> Any:
        """Unflattened."""
        return x.unflatten(self.axis, [int(size) for size in self.shape])

    def extra_repr(self) -> str:
        """For printing."""
        return f"axis={self.axis}, shape={self.shape}"


class Softmax2D(Layer):
    """Softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    def forward(self, x: Any) -> Any:
        """Softmax over the third dimension from the end.

        Raises:
            ValueError: another number of dimensions.
        """
        if x.ndim not in (3, 4):
            raise ValueError(f"Softmax2D takes 3 or 4 dimensions, got {list(x.shape)}")
        return functional.softmax(x, axis=-3)

    def extra_repr(self) -> str:
        """For printing."""
        return f"name={self._name}" if self._name else ""


class _Pad(Layer):
    mode = "constant"
    num_dims, data_format = 2, "NCHW"

    def __init__(
        self, padding: Any, mode: str | None = None, value: float = 0.0, data_format: str | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.pad = [padding] * (2 * self.num_dims) if isinstance(padding, int) else padding
        self.pad_mode, self.value = mode or self.mode, value
        self.layout, self._name = data_format or self.data_format, name

    def forward(self, x: Any) -> Any:
        """Padded."""
        return functional.pad(x, self.pad, mode=self.pad_mode, value=self.value, data_format=self.layout)

    def extra_repr(self) -> str:
        """For printing."""
        named = f", name={self._name}" if self._name else ""
        return f"padding={self.pad}, mode={self.pad_mode}, value={self.value}, data_format={self.layout}{named}"


def _pad_start(mode: str, layout: str, *, valued: bool) -> Callable[..., None]:
    """The `__init__` of a padding layer of one mode."""

    def with_value(
        self: Any, padding: Any, value: float, data_format: str = layout, name: str | None = None
    ) -> None:  # fmt: skip
        _Pad.__init__(self, padding, mode, value, data_format, name)

    def without(self: Any, padding: Any, data_format: str = layout, name: str | None = None) -> None:
        _Pad.__init__(self, padding, mode, 0.0, data_format, name)

    return with_value if valued else without


def _pads() -> dict[str, type[Layer]]:
    found: dict[str, type[Layer]] = {}
    layouts = {1: "NCL", 2: "NCHW", 3: "NCDHW"}
    for dims, layout in layouts.items():
        about = {"num_dims": dims, "data_format": layout, "__module__": __name__}
        found[f"Pad{dims}D"] = type(f"Pad{dims}D", (_Pad,), {**about, "__doc__": f"Pad {dims} dimensions."})
        for kind, mode in (("Constant", "constant"), ("Zero", "constant"), ("Circular", "circular"),
                           ("Replication", "replicate"), ("Reflection", "reflect")):  # fmt: skip
            name = f"{kind}Pad{dims}D"
            text = f"Pad {dims} dimensions: {kind.lower()}."
            start = _pad_start(mode, layout, valued=kind == "Constant")
            found[name] = type(name, (_Pad,), {**about, "mode": mode, "__init__": start, "__doc__": text})
    return found


class UpsamplingNearest2D(Layer):
    """Enlarge [N, C, H, W] by the nearest point."""

    mode = "nearest"

    def __init__(
        self, size: Any = None, scale_factor: Any = None, data_format: str = "NCHW", name: str | None = None
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.data_format = size, scale_factor, data_format

    def forward(self, x: Any) -> Any:
        """Enlarged."""
        corners = self.mode == "bilinear"
        return functional.interpolate(
            x, self.size, self.scale_factor, mode=self.mode, align_corners=corners, data_format=self.data_format
        )

    def extra_repr(self) -> str:
        """For printing."""
        chosen = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{chosen}, data_format={self.data_format}"


class UpsamplingBilinear2D(UpsamplingNearest2D):
    """Enlarge [N, C, H, W] bilinearly, corners on corners."""

    mode = "bilinear"


CLASSES: dict[str, type[Layer]] = {
    **_classes(),
    **_pads(),
    **{
        kind.__name__: kind
        for kind in (Identity, Flatten, Unflatten, Softmax2D, UpsamplingNearest2D, UpsamplingBilinear2D)
    },
}
CLASSES |= {name: CLASSES[name[:-1] + "D"] for name in SPELLED_TWICE.split()}
CLASSES |= {f"MaxUnpool{n}d": CLASSES[f"MaxUnPool{n}D"] for n in (1, 2, 3)}
CLASSES |= {"SiLU": CLASSES["Silu"], "HuberLoss": CLASSES["SmoothL1Loss"]}
