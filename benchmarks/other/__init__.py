"""Fourteen small models outside the zoo: other ways to put the same layers together.

An ablation over one zoo says what its models need, and nothing of models that are written
otherwise: without batch norms, with biases, with features that are joined and not added, with the
cells of Flax in their loops. Those are here, each with its whole training step (AdamW), as small as
a program may be that still shows what a rule is profitability.

Each takes ``dtype`` and ``size`` as a model of the zoo does (``benchmarks/zoo``). By hand means the
``dtype`` argument of Flax's layers and float32 logits, no more: Flax's attention then has its
softmax in half. Losses are those of Optax.

Rules of duotone may be made looking at them, as at the first half of the zoo: they say what a rule
or an optimization is profitability, not how well duotone does with models that it was not made for.

Who extends this: whoever adds a model adds a function that returns a
:class:`~benchmarks.zoo.case.TrainCase` to one of the files, and a line to :data:`OTHERS`.
"""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.other.case import Size
from benchmarks.other.images import bottleneck, densenet, preactivation, vae, vgg, vgg_norms
from benchmarks.other.rows import autoencoder, flow, table
from benchmarks.other.sequences import bert, gru, retention, scanned, seq2seq
from benchmarks.zoo.case import TrainCase


class Entry(NamedTuple):
    """A model's line in the table.

    Attributes:
        make: called with a dtype (None for float32) and a size.
        kind: what sets it apart, in a few words.
    """

    make: Callable[..., TrainCase]
    kind: str


OTHERS: dict[str, Entry] = {
    "vgg_norms": Entry(vgg_norms, "convolutions with biases before batch norms"),
    "vgg": Entry(vgg, "convolutions without norms"),
    "bottleneck": Entry(bottleneck, "bottlenecks whose convolutions have biases"),
    "preactivation": Entry(preactivation, "group norms before convolutions"),
    "densenet": Entry(densenet, "features that are joined, not added"),
    "bert": Entry(bert, "encoder, norms after the sums, dropout"),
    "gru": Entry(gru, "recurrent, 512 steps"),
    "vae": Entry(vae, "strided and transposed convolutions, draws"),
    "seq2seq": Entry(seq2seq, "LSTM encoder and decoder, attention in a loop"),
    "scanned": Entry(scanned, "decoder in a scan, rematerialized"),
    "flow": Entry(flow, "coupling layers of dense networks"),
    "retention": Entry(retention, "linear attention in chunks"),
    "autoencoder": Entry(autoencoder, "dense layers and batch norms"),
    "table": Entry(table, "transformer over the columns of a table"),
}
"""All of them, by name."""

__all__ = ["OTHERS", "Entry", "Size"]
