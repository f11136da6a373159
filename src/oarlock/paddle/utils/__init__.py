"""`paddle.utils`: exchange of tensors with other libraries."""

from oarlock.paddle.utils import dlpack as dlpack
