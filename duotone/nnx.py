"""Mixed precision for Flax NNX; needs the extra ``flax``. See ``docs/flax.md``."""

from duotone.adapters.nnx import autocast, blame, explain
from duotone.adapters.nnx_optimizer import Optimizer

__all__ = ["Optimizer", "autocast", "blame", "explain"]
