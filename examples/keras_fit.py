"""Train a Keras model in mixed precision: ``model.fit`` and one line around the optimizer.

It shows the callback that puts the loss scale into the history, curves in TensorBoard without
TensorFlow, and Orbax checkpoints of the whole model. The digits come with scikit-learn.

    python examples/keras_fit.py --precision float16 --epochs 15
    python examples/keras_fit.py --logs runs/keras --checkpoints runs/keras/saved
"""

# Keras ships no types.
# pyright: reportArgumentType=false

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

import jax
import keras
import numpy as np
import orbax.checkpoint as ocp
import typer
from rich.progress import Progress
from tensorboardX import SummaryWriter

import duotone.keras
from duotone.samples.digits import load_digits

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


def build_model():
    """A convolutional network for images ``[n, 8, 8, 1]``; it gives scores ``[n, 10]``."""
    layers = [keras.layers.Input((8, 8, 1))]
    for channels, stride in ((32, 1), (64, 2)):
        layers += [
            keras.layers.Conv2D(channels, 3, strides=stride, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
        ]
    layers += [
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers)


def read_loss_scale(text):
    try:
        return {"dynamic": "dynamic", "none": None}[text] if text.isalpha() else float(text)
    except (KeyError, ValueError):
        raise BadInput(f"--loss-scale {text}: say dynamic, none or a number.") from None


class ShowProgress(keras.callbacks.Callback):
    """A progress bar of epochs in place of Keras' own."""

    def __init__(self, title, first):
        super().__init__()
        self.title, self.first, self.bar = title, first, Progress()

    def on_train_begin(self, logs=None):
        """Starts the bar."""
        self.bar.start()
        epochs = (self.params or {}).get("epochs")
        self.task = self.bar.add_task(self.title, total=epochs, completed=self.first)

    def on_epoch_end(self, epoch, logs=None):
        """Moves it."""
        self.bar.update(self.task, completed=epoch + 1)

    def on_train_end(self, logs=None):
        """Ends it."""
        self.bar.stop()


class WriteCurves(keras.callbacks.Callback):
    """Writes the numbers of each epoch for TensorBoard, the loss scale among them."""

    def __init__(self, folder):
        super().__init__()
        self.writer = SummaryWriter(str(folder))

    def on_epoch_end(self, epoch, logs=None):
        """Writes one point of each curve."""
        for name, number in (logs or {}).items():
            self.writer.add_scalar(name, float(number), epoch + 1)
        self.writer.flush()

    def on_train_end(self, logs=None):
        """Writes what is not written yet."""
        self.writer.close()


class SaveState(keras.callbacks.Callback):
    """Saves the model and its optimizer after each epoch, and finds the last whole one again."""

    def __init__(self, folder, about):
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self.saved, self.about = ocp.CheckpointManager(folder.resolve(), options=options), about

    def _variables(self, model):
        return [*model.variables, *model.optimizer.variables]

    def on_epoch_end(self, epoch, logs=None):
        """Saves weights, batch statistics, seeds, the optimizer's slots and its loss scale."""
        state = [np.asarray(variable.value) for variable in self._variables(self.model)]
        items = {"state": ocp.args.StandardSave(state), "about": ocp.args.JsonSave(self.about)}
        self.saved.save(epoch + 1, args=ocp.args.Composite(**items))

    def resume(self, model):
        """Brings a built model to its last whole checkpoint; gives the epochs that it had."""
        last = self.saved.latest_step()
        if last is None:
            return 0
        try:
            items = ocp.args.Composite(about=ocp.args.JsonRestore())
            about = self.saved.restore(last, args=items)["about"]
            if about == self.about:
                state = [np.asarray(variable.value) for variable in self._variables(model)]
                items = ocp.args.Composite(state=ocp.args.StandardRestore(state))
                state = self.saved.restore(last, args=items)["state"]
                for variable, value in zip(self._variables(model), state, strict=True):
                    variable.assign(value)
                return last
        except Exception as error:  # Orbax has no error of its own for what is damaged
            raise BadInput(f"{self.saved.directory}/{last} cannot be read: {error}") from error
        raise BadInput(f"{self.saved.directory} is of {about}, this run of {self.about}")


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    epochs: Annotated[int, typer.Option(min=1)] = 15,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    seed: int = 0,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains a convolutional network on handwritten digits; gives the test accuracy."""
    data, half = load_digits(), HALF.get(precision, precision)
    keras.utils.set_random_seed(seed)
    model = build_model()
    steps = -(-len(data.train_images) // batch)
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(3e-3, epochs * steps))
    policy = duotone.Policy(ignore_performance=precision != "mixed")  # as asked, on CPUs too
    optimizer = duotone.enable_mixed_precision_graph_rewrite(  # the one line
        optimizer, read_loss_scale(loss_scale), dtype=half, policy=policy
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    optimizer.build(model.trainable_variables)

    begin = keras.callbacks.LambdaCallback(lambda epoch, _: np.random.seed((seed, epoch)))
    callbacks, first = [begin], 0  # Keras shuffles with NumPy: an epoch alike in every run
    # The loss scale and skipped steps among the logs; curves, and then what is to go on from there.
    callbacks += [duotone.keras.LossScaleCallback()] if half != "float32" else []
    callbacks += [WriteCurves(logs)] if logs else []
    if checkpoints:
        saving = SaveState(checkpoints, ["keras_fit", precision, loss_scale])
        first = saving.resume(model)
        callbacks.append(saving)
    callbacks.append(ShowProgress(f"training in {precision}", first))
    test = data.test_images, data.test_labels
    with jax.default_matmul_precision(MATH.get(precision)):
        model.fit(
            data.train_images,
            data.train_labels,
            batch_size=batch,
            initial_epoch=first,
            epochs=epochs,
            verbose=0,
            validation_data=test,
            callbacks=callbacks,
        )
        reached = float(model.evaluate(*test, verbose=0, return_dict=True)["accuracy"])
    metrics = optimizer.metrics() if half != "float32" else "in float32"
    print(f"accuracy {reached:.2%} on {jax.devices()[0].device_kind}, {metrics}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("keras_fit.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
