"""The zoo: real architectures of public sizes, each with its whole training step.

Each model takes ``dtype`` and ``size``. With ``dtype=None`` it is written in float32, for duotone
to paint; with a half type it is the same model with dtypes set by hand, as a good engineer does:
dense layers and convolutions half, norms and softmax computed in float32 and passed on in half,
logits and loss float32, parameters and their updates float32. Both take the same parameters.

Every model belongs to one of two halves. Rules of duotone may be made looking at the first. The
second is compiled and reported only: nobody looks into its programs kernel by kernel, so that its
figures say what duotone does to models that it was not made for (``benchmarks/NOTES.md``). Beside
the halves are fourteen small models that put the same layers together in other ways
(:mod:`benchmarks.zoo.small`). They show what a rule is worth outside of the first half, and rules
may be made looking at them.

To add a model, write a function that returns a :class:`~benchmarks.zoo.case.TrainCase`, and add a
line to :data:`ZOO`.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from benchmarks.zoo.actor_critic import actor_critic
from benchmarks.zoo.case import TrainCase
from benchmarks.zoo.conformer import conformer
from benchmarks.zoo.convnext import convnext
from benchmarks.zoo.dit import diffusion
from benchmarks.zoo.dlrm import dlrm
from benchmarks.zoo.efficientnet import efficientnet
from benchmarks.zoo.gan import gan
from benchmarks.zoo.gat import gat
from benchmarks.zoo.gpt2 import gpt2, gpt2_scan
from benchmarks.zoo.llama import llama
from benchmarks.zoo.lstm import lstm
from benchmarks.zoo.mamba import mamba
from benchmarks.zoo.mixer import mixer
from benchmarks.zoo.moe import mixture_of_experts
from benchmarks.zoo.mpnn import mpnn
from benchmarks.zoo.nerf import nerf
from benchmarks.zoo.perceiver import perceiver
from benchmarks.zoo.pinn import pinn
from benchmarks.zoo.pointnet import pointnet
from benchmarks.zoo.resnet50 import resnet50
from benchmarks.zoo.rwkv import rwkv
from benchmarks.zoo.small_images import bottleneck, densenet, preactivation, vae, vgg, vgg_norms
from benchmarks.zoo.small_rows import autoencoder, flow, table
from benchmarks.zoo.small_sequences import bert, gru, retention, scanned, seq2seq
from benchmarks.zoo.swin import swin
from benchmarks.zoo.t5 import t5
from benchmarks.zoo.triangles import triangles
from benchmarks.zoo.two_tower import two_tower
from benchmarks.zoo.unet import unet
from benchmarks.zoo.unet3d import unet3d
from benchmarks.zoo.vit import vit
from benchmarks.zoo.wavenet import wavenet

Half = Literal["first", "second", "small"]
"""Rules may be made looking at the first half and at small models; the second is reported only."""
HALVES: dict[Half, str] = {"first": "first half", "second": "second half", "small": "small models"}
"""Their names in tables."""


class Entry(NamedTuple):
    """A model's line in the table.

    Attributes:
        make: called with a dtype (None for float32) and a size.
        half: where it belongs.
        kind: what sets it apart, in a few words.
    """

    make: Callable[..., TrainCase]
    half: Half
    kind: str


ZOO: dict[str, Entry] = {
    "resnet50": Entry(resnet50, "first", "convolutions, batch norms"),
    "convnext": Entry(convnext, "first", "depthwise convolutions, layer norms"),
    "vit": Entry(vit, "first", "attention over patches"),
    "unet": Entry(unet, "first", "diffusion, convolutions"),
    "gpt2": Entry(gpt2, "first", "decoder"),
    "gpt2_scan": Entry(gpt2_scan, "first", "decoder in a scan"),
    "llama": Entry(llama, "first", "decoder, rotary"),
    "moe": Entry(mixture_of_experts, "first", "mixture of experts"),
    "lstm": Entry(lstm, "first", "recurrent"),
    "diffusion": Entry(diffusion, "first", "diffusion, attention"),
    "gan": Entry(gan, "first", "two networks"),
    "dlrm": Entry(dlrm, "first", "embedding tables"),
    "efficientnet": Entry(efficientnet, "first", "depthwise convolutions, squeeze and excitation"),
    "gat": Entry(gat, "first", "graph, segment softmax"),
    "mamba": Entry(mamba, "first", "selective scan"),
    "pinn": Entry(pinn, "first", "second derivatives"),
    "mpnn": Entry(mpnn, "second", "graph, segment sums"),
    "rwkv": Entry(rwkv, "second", "linear recurrence"),
    "nerf": Entry(nerf, "second", "fields, volume rendering"),
    "mixer": Entry(mixer, "second", "perceptrons over patches"),
    "swin": Entry(swin, "second", "attention in windows"),
    "perceiver": Entry(perceiver, "second", "cross-attention to latents"),
    "two_tower": Entry(two_tower, "second", "contrastive, two networks"),
    "t5": Entry(t5, "second", "encoder and decoder, relative bias"),
    "conformer": Entry(conformer, "second", "speech, CTC"),
    "wavenet": Entry(wavenet, "second", "dilated causal convolutions"),
    "unet3d": Entry(unet3d, "second", "convolutions in three dimensions"),
    "pointnet": Entry(pointnet, "second", "point clouds, gathers"),
    "actor_critic": Entry(actor_critic, "second", "reinforcement learning"),
    "triangles": Entry(triangles, "second", "triangle updates of proteins"),
    "vgg_norms": Entry(vgg_norms, "small", "convolutions with biases before batch norms"),
    "vgg": Entry(vgg, "small", "convolutions without norms"),
    "bottleneck": Entry(bottleneck, "small", "bottlenecks whose convolutions have biases"),
    "preactivation": Entry(preactivation, "small", "group norms before convolutions"),
    "densenet": Entry(densenet, "small", "features that are joined, not added"),
    "bert": Entry(bert, "small", "encoder, norms after the sums, dropout"),
    "gru": Entry(gru, "small", "recurrent, 512 steps"),
    "vae": Entry(vae, "small", "strided and transposed convolutions, draws"),
    "seq2seq": Entry(seq2seq, "small", "LSTM encoder and decoder, attention in a loop"),
    "scanned": Entry(scanned, "small", "decoder in a scan, rematerialized"),
    "flow": Entry(flow, "small", "coupling layers of dense networks"),
    "retention": Entry(retention, "small", "linear attention in chunks"),
    "autoencoder": Entry(autoencoder, "small", "dense layers and batch norms"),
    "table": Entry(table, "small", "transformer over the columns of a table"),
}
"""All models, by name."""
MODELS: dict[str, Callable[..., TrainCase]] = {
    name: entry.make for name, entry in ZOO.items() if entry.half != "small"
}
"""How each model of the two halves is made, by name."""


def names_of(half: Half) -> tuple[str, ...]:
    """The models of one half."""
    return tuple(name for name, entry in ZOO.items() if entry.half == half)
