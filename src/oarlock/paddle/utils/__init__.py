"""`paddle.utils`: exchange of tensors with other libraries; graphs of a block, drawn; names, versions."""

from oarlock.paddle.utils import bwd_graph_utils as bwd_graph_utils
from oarlock.paddle.utils import dlpack as dlpack
from oarlock.paddle.utils import fwd_graph_utils as fwd_graph_utils
from oarlock.paddle.utils import unique_name as unique_name
from oarlock.paddle.utils.helpers import deprecated as deprecated
from oarlock.paddle.utils.helpers import require_version as require_version
from oarlock.paddle.utils.helpers import run_check as run_check
from oarlock.paddle.utils.helpers import try_import as try_import
