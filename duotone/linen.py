"""Mixed precision for Flax Linen; needs the extra ``flax``. See ``docs/flax.md``."""

from duotone.adapters.linen import TrainState

__all__ = ["TrainState"]
