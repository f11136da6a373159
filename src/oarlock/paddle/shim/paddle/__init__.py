"""Found by child processes of a program under `oarlock paddle run`: makes `import paddle` resolve to Oarlock there."""

import sys

from oarlock.paddle.program import install_in_child

install_in_child()
sys.modules[__name__] = sys.modules["oarlock.paddle"]
