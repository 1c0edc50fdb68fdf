"""Mixed precision for Flax NNX; needs the extra ``flax``. See ``docs/flax.md``."""

from duotone.adapters.nnx import autocast as autocast
from duotone.adapters.nnx import blame as blame
from duotone.adapters.nnx import explain as explain
from duotone.adapters.nnx_optimizer import Optimizer as Optimizer
