"""`paddle.utils`: exchange of tensors with other libraries; graphs of a block, drawn; unique names."""

from oarlock.paddle.utils import bwd_graph_utils as bwd_graph_utils
from oarlock.paddle.utils import dlpack as dlpack
from oarlock.paddle.utils import fwd_graph_utils as fwd_graph_utils
from oarlock.paddle.utils import unique_name as unique_name
