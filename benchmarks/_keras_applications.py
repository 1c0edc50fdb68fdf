"""One training step of an architecture of keras.applications: float32, rewritten, by hand.

Called by ``scripts/keras_applications.py``, in a process of its own for each architecture; what is
compared, and why, is in the head of the page that it writes
(``docs/coverage/keras_applications.md``).

An exception of a step passes through, and 30 skipped steps in a row raise one.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

import jax
import keras
import ml_dtypes
import numpy as np

from benchmarks._common import nested_programs
from duotone.adapters.keras import enable

KERAS_VERSION: str = keras.__version__
CLASSES = 10
BATCH = 4
SMALLEST = 64
"""Pixels, from which on sizes are tried; at 32 most architectures end with one pixel."""
HALF_TYPES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Each half type and its epsilon, the spacing of its numbers above 1."""
SEEDS = {"shifted": (0, 1), "initial": (0,)}
"""The seeds of the batches, for each start (:func:`starts_of`)."""
MORE_BATCHES = 10
"""Shifted batches of an architecture that is out of a limit with those of :data:`SEEDS`."""
SHIFTED_SHIFT = 2
"""The shift of batch normalisations: with 2, two or three values of a hundred lie below the kink of
a rectifier. With
3 whole layers are linear, and the gradients of shifts vanish."""
LOST = 0.5
"""The relative error from which a gradient says nothing; one of zeros has an error of 1."""
MOST_SKIPPED = 30
"""So many steps are skipped before an overflow is called permanent; the scale begins at 2**15."""


def architectures() -> dict[str, Callable[..., Any]]:
    """Every public function of ``keras.applications``, which each build one architecture."""
    return {n: f for n, f in sorted(vars(keras.applications).items()) if inspect.isfunction(f)}


def smallest_input(build: Callable[[int], Any], largest: int = 400) -> Any:
    """The model with the smallest input that its architecture takes.

    From ``SMALLEST`` on; and larger where a batch normalisation would see one pixel of each image:
    four numbers less their mean, over their deviation, make any gradient a matter of rounding.
    """
    refusal: ValueError | None = None
    size = SMALLEST
    while size <= largest:
        try:
            model = build(size)
        except ValueError as error:  # Keras names the least size; other libraries' may not
            refusal = error
            size += 1
            continue
        if fewest_pixels(model) > 1:
            return model
        size += 16  # each try builds the whole model
    raise ValueError(f"no input of {SMALLEST} to {largest} pixels is taken") from refusal


def fewest_pixels(model: Any) -> float:
    """Returns the fewest pixels of an image that a batch normalisation reads; else infinity."""
    kind: Any = keras.layers.BatchNormalization
    shapes = [layer.output.shape for layer in layers_of(model) if isinstance(layer, kind)]
    return min((math.prod(shape[1:-1]) for shape in shapes), default=math.inf)


def batch_of(module: Any, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images as the architecture's own ``preprocess_input`` makes them, and random labels.

    Coloured patches with noise: float32[BATCH, size, size, 3] from 0 to 255, int32[BATCH].
    """
    rng = np.random.default_rng(seed)
    repeat = -(-size // 4)
    patches = rng.uniform(0, 255, (BATCH, 4, 4, 3)).repeat(repeat, 1).repeat(repeat, 2)
    images = patches[:, :size, :size] + rng.normal(0, 32, (BATCH, size, size, 3))
    images = np.clip(images, 0, 255).astype("float32")
    return module.preprocess_input(images), rng.integers(0, CLASSES, BATCH).astype("int32")


def layers_of(model: Any) -> Iterator[Any]:
    """Every layer, those of nested models too."""
    for layer in model.layers:
        yield layer
        if hasattr(layer, "layers"):
            yield from layers_of(layer)


def starts_of(model: Any) -> dict[str, list[np.ndarray]]:
    """By start, the values of all variables of a new model.

    Initial: as Keras made them. Shifted: batch normalisations have a shift.
    """
    initial = [np.array(variable.value) for variable in model.variables]
    kind: Any = keras.layers.BatchNormalization
    norms = [layer for layer in layers_of(model) if isinstance(layer, kind) and layer.center]
    shifts = {id(layer.beta) for layer in norms}
    shifted = [
        np.full_like(value, SHIFTED_SHIFT) if id(variable) in shifts else value
        for variable, value in zip(model.variables, initial, strict=True)
    ]
    return {"shifted": shifted, "initial": initial}


def rounded(values: Sequence[np.ndarray], half: str) -> list[np.ndarray]:
    """float32 arrays rounded to a half type, as float32; others as they are."""
    kind = np.float16 if half == "float16" else ml_dtypes.bfloat16
    return [v.astype(kind).astype("float32") if v.dtype == np.float32 else v for v in values]


def count_dots(jaxpr: Any, half: str) -> tuple[int, int]:
    """Dots and convolutions of a program, and those whose operands are all half values.

    A half value may be widened just before: with JAX 0.10 duotone does that for bfloat16 dots that
    would fail on a CPU, where the products are the same.
    """
    total = in_half = 0
    widened = set()
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == "convert_element_type" and eqn.invars[0].aval.dtype.name == half:
            widened.add(id(eqn.outvars[0]))
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            total += 1
            in_half += all(v.aval.dtype.name == half or id(v) in widened for v in eqn.invars)
        for nested in nested_programs(eqn.params.values()):
            inside = count_dots(nested, half)
            total, in_half = total + inside[0], in_half + inside[1]
    return total, in_half


class NeverTakenError(RuntimeError):
    """Dynamic loss scaling found no scale at which the gradients are finite."""


class Step:
    """A model compiled with an optimizer, and its training step on values that are put in.

    Attributes:
        model: the Keras model.
        optimizer: the one that Keras calls; of float16 with a loss scale.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)
        self.model, self.optimizer = model, model.optimizer
        self.optimizer.build(model.trainable_variables)
        self._momenta = getattr(self.optimizer, "inner_optimizer", self.optimizer).momentums

    def run(self, values: Sequence[np.ndarray], batch: tuple[Any, Any]) -> tuple[float, int]:
        """One step that is taken; the loss, and how many were skipped before it.

        Raises:
            NeverTakenError: all of ``MOST_SKIPPED`` steps were skipped.
        """
        for skipped in range(MOST_SKIPPED):
            for variable, value in zip(self.model.variables, values, strict=True):
                variable.assign(value)
            for momentum in self._momenta:
                momentum.assign(np.zeros(momentum.shape, "float32"))
            self.model.reset_metrics()
            loss = float(self.model.train_on_batch(*batch))
            # A skipped step leaves the momenta as they were: at zero.
            if any(np.any(gradient) for gradient in self.gradients()):
                return loss, skipped
        raise NeverTakenError(f"{MOST_SKIPPED} steps in a row were skipped")

    def gradients(self) -> Iterator[np.ndarray]:
        """The gradients of the last step, variable by variable: SGD's momentum is ``-1 * g``."""
        return (-np.asarray(momentum.value) for momentum in self._momenta)

    def trace(self, batch: tuple[Any, Any]) -> tuple[Any, float]:
        """The program of the step as Keras would compile it, and the seconds to make it."""
        self.model.make_train_function()  # where the adapter learns of the model
        if hasattr(self.model, "_record_training_state_sharding_spec"):
            self.model._record_training_state_sharding_spec()  # Keras 3.10 reads it in the step
        variables = (
            self.model.trainable_variables,
            self.model.non_trainable_variables,
            self.optimizer.variables,
            self.model.metrics_variables,
        )
        state = tuple([variable.value for variable in group] for group in variables)
        start = time.perf_counter()
        jaxpr = jax.make_jaxpr(self.model.train_step)(state, batch)
        return jaxpr, time.perf_counter() - start


class Cases:
    """The values and batches that every way is run with, and float32's losses and gradients.

    The gradients are kept in a folder: those of all cases may be larger than the memory.
    """

    def __init__(
        self, model: Any, module: Any, folder: Path, seeds: Mapping[str, Sequence[int]]
    ) -> None:
        self._folder = folder
        self._seeds = seeds
        self._starts = starts_of(model)
        count = max(map(max, seeds.values())) + 1
        self.batches = [batch_of(module, model.input_shape[1], seed) for seed in range(count)]
        self._losses: dict[tuple[str, int], float] = {}

    def keep(self, step: Step) -> None:
        """Runs the cases in float32 and keeps what comes out."""
        for start, seeds in self._seeds.items():
            for seed in seeds:
                loss, _ = step.run(self._starts[start], self.batches[seed])
                self._losses[start, seed] = loss
                np.savez(self._folder / f"{start}{seed}.npz", *step.gradients())

    def compare(self, step: Step, half: str | None = None) -> dict[str, dict[str, float]]:
        """Runs the cases another way, with weights and images rounded to ``half`` before.

        Returns:
            By start, the errors of loss and gradient, the number of variables whose own gradient is
            lost, and how many steps were skipped.
        """
        found = {}
        for start, seeds in self._seeds.items():
            values = rounded(self._starts[start], half) if half else self._starts[start]
            losses, gradients, skips = [], [], 0
            for seed in seeds:
                images, labels = self.batches[seed]
                shown = rounded([images], half)[0] if half else images
                loss, skipped = step.run(values, (shown, labels))
                exact = self._losses[start, seed]
                losses.append(abs(loss - exact) / abs(exact))
                with np.load(self._folder / f"{start}{seed}.npz") as kept:
                    gradients.append(squares(step.gradients(), kept.values()))
                skips += skipped
            found[start] = {
                "loss": _rms(losses),
                "gradient": _rms([relative(each.sum(0)) for each in gradients]),
                "lost": sum(relative(each) > LOST for each in np.sum(gradients, axis=0)),
                "skipped": skips,
            }
        gc.collect()  # the program before this one
        return found


def squares(found: Iterable[np.ndarray], exact: Iterable[np.ndarray]) -> np.ndarray:
    """For each array, the squared norms of what is wrong and of what is exact: float64[n, 2]."""
    pairs = zip(found, exact, strict=True)
    return np.array(
        [[_square(one.astype("float64") - right), _square(right)] for one, right in pairs]
    )


def _square(array: np.ndarray) -> float:
    return float(np.sum(np.square(array, dtype="float64")))


def relative(wrong_and_exact: np.ndarray) -> float:
    """The relative error that two squared norms say; of an exact zero, 0 or infinite."""
    wrong, exact = wrong_and_exact
    if exact == 0:
        return 0.0 if wrong == 0 else math.inf
    return math.sqrt(wrong / exact)


def _rms(numbers: Sequence[float]) -> float:
    return math.sqrt(sum(n * n for n in numbers) / len(numbers))


def _sgd() -> Any:
    return keras.optimizers.SGD(1.0, momentum=0.5)


def measure(name: str, *, more: bool = False) -> dict[str, Any]:
    """The record of one architecture, with :data:`MORE_BATCHES` if asked.

    Takes minutes; raises what a step raises.
    """
    seeds = {**SEEDS, "shifted": tuple(range(MORE_BATCHES))} if more else SEEDS
    begin = time.perf_counter()
    function = architectures()[name]

    def build(size: int) -> Any:
        keras.utils.set_random_seed(0)
        return function(
            weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
        )

    model = smallest_input(build)
    size = model.input_shape[1]
    record: dict[str, Any] = {
        "parameters": model.count_params(),
        "variables": len(model.trainable_variables),
        "input": size,
        "batches": len(seeds["shifted"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(model, importlib.import_module(function.__module__), Path(folder), seeds)
        plain = Step(model, _sgd())
        record["trace seconds"] = plain.trace(cases.batches[0])[1]
        cases.keep(plain)
        halves: dict[str, dict[str, Any]] = {
            half: {"rounded": cases.compare(plain, half)} for half in HALF_TYPES
        }
        del plain  # its momenta are as large as the model
        for half in HALF_TYPES:
            halves[half] |= _rewritten(model, half, cases)
        del model
        for half in HALF_TYPES:
            halves[half]["by hand"] = _by_hand(build, size, half, cases)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - begin
    return record | {"halves": halves, "seconds": seconds, "memory GiB": peak}


def _by_hand(
    build: Callable[[int], Any], size: int, half: str, cases: Cases
) -> dict[str, dict[str, float]]:
    """Returns the errors under Keras' own mixed policy; NaN if it takes no step."""
    keras.config.set_dtype_policy(f"mixed_{half}")
    try:
        model = build(size)
    finally:
        keras.config.set_dtype_policy("float32")
    try:
        return cases.compare(Step(model, _sgd()))
    except NeverTakenError:
        nothing = {"loss": math.nan, "gradient": math.nan, "lost": math.nan}
        return dict.fromkeys(SEEDS, nothing)


def _rewritten(model: Any, half: str, cases: Cases) -> dict[str, Any]:
    """Returns the errors with duotone."""
    step = Step(model, enable(_sgd(), dtype=half))
    jaxpr, seconds = step.trace(cases.batches[0])
    dots, in_half = count_dots(jaxpr, half)
    return {"seconds": seconds, "dots": dots, "half": in_half, "duotone": cases.compare(step)}
