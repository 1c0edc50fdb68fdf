"""The models that benchmarks measure, in Flax, as their users write them.

Each takes ``dtype``: left alone the model is written in float32, for duotone to paint; with a half
type it is the same model with dtypes set by hand, ``dtype=half`` and float32 parameters. Both take
the same parameters, and both losses are computed in float32 from logits cast to float32.

Who extends this: whoever adds a model adds a file with a :class:`Case` in it, and its name to
:data:`CASES`.
"""

from benchmarks.models.case import Case
from benchmarks.models.resnet import small_resnet
from benchmarks.models.transformer import gpt2_small, small_transformer
from benchmarks.models.unet import small_unet
from benchmarks.models.unrolled import unrolled_gpt, unrolled_net

CASES = {
    "resnet": small_resnet,
    "transformer": small_transformer,
    "unet": small_unet,
    "gpt2": gpt2_small,
}
"""By name: each returns a :class:`Case` for a dtype."""

__all__ = [
    "CASES",
    "Case",
    "gpt2_small",
    "small_resnet",
    "small_transformer",
    "small_unet",
    "unrolled_gpt",
    "unrolled_net",
]
