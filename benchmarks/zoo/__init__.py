"""The zoo: real architectures of public sizes, each with its whole training step.

Each model takes ``dtype`` and ``size``. With ``dtype=None`` it is written in float32, for duotone
to paint; with a half type it is the same model with dtypes set by hand, as a good engineer does:
dense layers and convolutions half, norms and softmax computed in float32 and handed on in half,
logits and loss float32, parameters and their updates float32. Both take the same parameters.

Who extends this: whoever adds a model adds a file with a function that returns a
:class:`~benchmarks.zoo.case.TrainCase`, and its name to :data:`MODELS`.
"""

from collections.abc import Callable

from benchmarks.zoo.case import SIZES, Size, State, TrainCase
from benchmarks.zoo.convnext import convnext
from benchmarks.zoo.dit import diffusion
from benchmarks.zoo.dlrm import dlrm
from benchmarks.zoo.gan import gan
from benchmarks.zoo.gpt2 import gpt2, gpt2_scan
from benchmarks.zoo.llama import llama
from benchmarks.zoo.lstm import lstm
from benchmarks.zoo.moe import mixture_of_experts
from benchmarks.zoo.resnet50 import resnet50
from benchmarks.zoo.unet import unet
from benchmarks.zoo.vit import vit

MODELS: dict[str, Callable[..., TrainCase]] = {
    "resnet50": resnet50,
    "convnext": convnext,
    "vit": vit,
    "unet": unet,
    "gpt2": gpt2,
    "gpt2_scan": gpt2_scan,
    "llama": llama,
    "moe": mixture_of_experts,
    "lstm": lstm,
    "diffusion": diffusion,
    "gan": gan,
    "dlrm": dlrm,
}
"""By name: each is called with a dtype (None for float32) and a size."""

__all__ = ["MODELS", "SIZES", "Size", "State", "TrainCase"]
