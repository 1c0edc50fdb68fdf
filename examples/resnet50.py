"""Train ResNet-50 in mixed precision, data parallel over all devices; count images per second.

It shows ``duotone.linen.TrainState`` and input by ``grain``: folders of images, one for each class,
or TFRecords (image/encoded, image/class/label). Without ``--data`` one batch is made up.

    python examples/resnet50.py --data imagenet/train --batch 256 --steps 1000 --logs runs/resnet50
    python examples/resnet50.py --size 32 --width 16 --batch 32 --steps 50 --precision bfloat16
"""

import io
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import flax.linen as nn
import grain
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet
from grain.checkpoint import CheckpointRestore, CheckpointSave
from jax.sharding import Mesh, NamedSharding
from PIL import Image
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone.linen

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
HALF = {"mixed": None, "tf32": "float32"}  # what duotone is told; None: it asks the device
MATH = {"float32": "float32", "tf32": "tensorfloat32"}  # inside float32 dots, on a GPU or TPU


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


class ResNet(nn.Module):
    """ResNet version 1.5: 3, 4, 6 and 3 blocks of three convolutions make 50 layers."""

    classes: int
    width: int
    blocks: tuple[int, ...]

    @nn.compact
    def __call__(self, x, train=True):
        """Scores ``[n, classes]`` for images ``[n, size, size, 3]``."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        conv = partial(nn.Conv, use_bias=False)
        x = nn.relu(norm()(conv(self.width, (7, 7), 2)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, block in [(s, b) for s, count in enumerate(self.blocks) for b in range(count)]:
            width, stride = self.width * 2**stage, 2 if stage and block == 0 else 1
            h = nn.relu(norm()(conv(width, (1, 1))(x)))
            h = nn.relu(norm()(conv(width, (3, 3), stride)(h)))
            h = norm(scale_init=nn.initializers.zeros)(conv(4 * width, (1, 1))(h))
            x = x if x.shape == h.shape else norm()(conv(4 * width, (1, 1), stride)(x))
            x = nn.relu(x + h)
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


class State(duotone.linen.TrainState):
    """Parameters, optimizer, loss scale and, besides, batch statistics."""

    batch_stats: Any = None


@jax.jit
def train_step(state, images, labels):
    def loss_fn(params, batch_stats):
        variables = {"params": params, "batch_stats": batch_stats}
        scores, new = state.apply_fn(variables, images, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return losses.mean(), new["batch_stats"]

    out = state.compute_gradients(loss_fn, state.batch_stats, has_aux=True)
    return state.apply_gradients(grads=out, batch_stats=out.aux), out.value


def fields(message, number):
    return [f.data for f in UnknownFieldSet(Empty.FromString(message)) if f.field_number == number]


def read_example(record):
    try:
        features = {fields(e, 1)[0]: fields(e, 2)[0] for e in fields(fields(record, 1)[0], 1)}
        label = fields(fields(features[b"image/class/label"], 3)[0], 1)[0]
        if isinstance(label, bytes):  # a packed list of numbers
            label = sum((byte & 127) << (7 * place) for place, byte in enumerate(label))
        return io.BytesIO(fields(fields(features[b"image/encoded"], 1)[0], 1)[0]), label
    except Exception as error:
        raise BadInput(f"a record needs an image and a label as an Example: {error!r}") from error


def decode(size, example, rng):
    image = Image.open(example[0]).convert("RGB")  # its OSError names the file
    side = min(image.size) * rng.uniform(0.5, 1)
    left, top = (rng.uniform(0, length - side) for length in image.size)
    image = image.resize((size, size), box=(left, top, left + side, top + side))
    return np.asarray(image, np.float32)[:, :: rng.choice((-1, 1))] / 64 - 2, np.int32(example[1])


def open_data(folder, size, batch, seed):
    mine, crop = slice(jax.process_index(), None, jax.process_count()), partial(decode, size)
    if folder is None:
        pixels = np.random.default_rng(seed).normal(size=(batch, size, size, 3))
        images = [(np.float32(pixels), np.arange(batch, dtype=np.int32) % 10)]
        return iter(grain.MapDataset.source(images).repeat().to_iter_dataset()), 10
    if records := sorted(map(str, folder.glob("*tfrecord*")))[mine]:
        images = [grain.experimental.TFRecordIterDataset(name) for name in records]
        images = grain.experimental.InterleaveIterDataset(images, cycle_length=8).map(read_example)
        images = grain.experimental.RepeatIterDataset(images).seed(seed).random_map(crop)
        classes = 1001  # ImageNet's labels begin at 1
    else:
        names = sorted(path for path in folder.iterdir() if path.is_dir())
        found = [(path, k) for k, name in enumerate(names) for path in sorted(name.iterdir())]
        if not (found := found[mine]):
            raise BadInput(f"--data {folder}: no folders of images and no *tfrecord* in it")
        images, classes = grain.MapDataset.source(found).seed(seed), len(names)
        images = images.shuffle().repeat().random_map(crop).to_iter_dataset()  # in 16 threads
    return iter(images.batch(batch, drop_remainder=True)), classes


def resume(saved, about, state, images):
    if saved is None or (last := saved.latest_step()) is None:
        return state, [], 0
    try:
        of = saved.restore(last, args=ocp.args.Composite(of=ocp.args.JsonRestore()))
        kept, curve = of["of"].values()
        if kept == about:
            items = {"state": ocp.args.StandardRestore(state), "images": CheckpointRestore(images)}
            return saved.restore(last, args=ocp.args.Composite(**items))["state"], curve, last
    except Exception as error:
        raise BadInput(f"{saved.directory}/{last} cannot be read: {error}") from error
    raise BadInput(f"{saved.directory} is of {kept}, this run of {about}")


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    steps: Annotated[int, typer.Option(min=1)] = 100,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    size: Annotated[int, typer.Option(min=32)] = 224,
    width: Annotated[int, typer.Option(min=1)] = 64,
    seed: int = 0,
    data: Path | None = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
) -> float:
    """Trains ResNet-50, says how many images a second it takes; gives the loss at the end."""
    devices, about = jax.devices(), {"resnet50": [width, *blocks, precision, loss_scale]}
    if batch % len(devices) or (checkpoints and checkpoints.is_file()):
        raise BadInput(f"--batch {batch} must divide by {len(devices)}, --checkpoints be a folder")
    scale = float(loss_scale) if loss_scale.replace(".", "", 1).isdigit() else loss_scale
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    saved = ocp.CheckpointManager(checkpoints.resolve(), options=options) if checkpoints else None
    images, classes = open_data(data, size, batch // jax.process_count(), seed)
    model = ResNet(classes, width, blocks)
    state = State.create(
        apply_fn=model.apply,
        tx=optax.sgd(optax.cosine_decay_schedule(0.1 * batch / 256, steps), 0.9, nesterov=True),
        loss_scale=None if scale == "none" else scale,
        dtype=HALF.get(precision, precision),
        policy=duotone.Policy(ignore_performance=precision != "mixed"),  # as asked, on CPUs too
        **model.init(jax.random.key(seed), np.zeros((1, size, size, 3), np.float32), train=False),
    )
    split = NamedSharding(Mesh(np.array(devices), ("data",)), jax.P("data"))
    state = jax.device_put(state, split.update(spec=jax.P()))
    state, curve, first = resume(saved, about, state, images)
    writer = SummaryWriter(str(logs or ""), write_to_disk=bool(logs))
    with jax.default_matmul_precision(MATH.get(precision)):
        for step in track(range(first, steps), f"training in {precision}"):
            start, put = time.perf_counter(), partial(jax.make_array_from_process_local_data, split)
            state, loss = train_step(state, *map(put, next(images)))
            curve.append((float(loss), time.perf_counter() - start))  # waits for the step
            for name, number in (state.metrics() | {"loss": loss, "dtype": 0}).items():
                writer.add_scalar(name, float(number), step + 1)
            if saved and ((step + 1) % 100 == 0 or step + 1 == steps):
                writer.flush()
                items = {"state": ocp.args.StandardSave(state), "images": CheckpointSave(images)}
                items["of"] = ocp.args.JsonSave({"about": about, "curve": curve[-99:]})
                saved.save(step + 1, args=ocp.args.Composite(**items))
    writer.close()
    losses, seconds = np.array(curve[5:] or curve or [(np.nan, np.nan)]).T  # not the first compile
    print(f"{batch / np.median(seconds):.1f} images/s on {devices}, {state.metrics()}")
    return float(losses[-10:].mean())


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("resnet50.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
