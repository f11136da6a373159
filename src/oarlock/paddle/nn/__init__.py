"""`paddle.nn`: layers, the functions of networks, initialisers and gradient clipping."""

from oarlock.paddle.nn import attention, functional, init, initializer, layer, loss, modules, utils
from oarlock.paddle.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from oarlock.paddle.nn.decode import BeamSearchDecoder, dynamic_decode
from oarlock.paddle.nn.layer.attention import MultiHeadAttention
from oarlock.paddle.nn.layer.containers import LayerDict, LayerList, ParameterDict, ParameterList, Sequential
from oarlock.paddle.nn.layer.functions import CLASSES as _CLASSES
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.layer.many_classes import AdaptiveLogSoftmaxWithLoss, HSigmoidLoss
from oarlock.paddle.nn.layer.norm import (
    BatchNorm,
    BatchNorm1D,
    BatchNorm2D,
    BatchNorm3D,
    GroupNorm,
    InstanceNorm1D,
    InstanceNorm2D,
    InstanceNorm3D,
    LayerNorm,
    RMSNorm,
    SpectralNorm,
    SyncBatchNorm,
)
from oarlock.paddle.nn.layer.recurrent import RNN, BiRNN
from oarlock.paddle.nn.layer.recurrent_cells import GRUCell, LSTMCell, RNNCellBase, SimpleRNNCell
from oarlock.paddle.nn.layer.recurrent_networks import GRU, LSTM, SimpleRNN
from oarlock.paddle.nn.layer.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from oarlock.paddle.nn.layer.weighted import (
    Bilinear,
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    Embedding,
    Linear,
    PReLU,
)
from oarlock.paddle.nn.parameter import ParamAttr, Parameter
from oarlock.paddle.nn.utils import spectral_norm

globals().update(_CLASSES)
Conv1d, Conv2d, Conv3d = Conv1D, Conv2D, Conv3D
Module, ModuleList, ModuleDict = Layer, LayerList, LayerDict

__all__ = [
    "BatchNorm",
    "BatchNorm1D",
    "BatchNorm2D",
    "BatchNorm3D",
    "BeamSearchDecoder",
    "Bilinear",
    "ClipGradByGlobalNorm",
    "ClipGradByNorm",
    "ClipGradByValue",
    "Conv1D",
    "Conv1DTranspose",
    "Conv1d",
    "Conv2D",
    "Conv2DTranspose",
    "Conv2d",
    "Conv3D",
    "Conv3DTranspose",
    "Conv3d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm1D",
    "InstanceNorm2D",
    "InstanceNorm3D",
    "Layer",
    "LayerDict",
    "LayerList",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleDict",
    "ModuleList",
    "PReLU",
    "ParamAttr",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RMSNorm",
    "Sequential",
    "SpectralNorm",
    "SyncBatchNorm",
    "attention",
    "functional",
    "init",
    "initializer",
    "layer",
    "loss",
    "modules",
    "spectral_norm",
    "utils",
    "GRU",
    "LSTM",
    "RNN",
    "BiRNN",
    "GRUCell",
    "LSTMCell",
    "RNNCellBase",
    "SimpleRNN",
    "SimpleRNNCell",
    "dynamic_decode",
    "MultiHeadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "AdaptiveLogSoftmaxWithLoss",
    "HSigmoidLoss",
    *_CLASSES,
]
