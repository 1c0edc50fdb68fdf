# python -m benchmarks.peers_cpu
"""What do a prediction and a training step cost on this CPU, next to what users would pick?

Eight models of the zoo at CPU size, without dropout, and the generation of text by a GPT-2 small
with a cache of keys and values. Each runs in JAX (float32; ``duotone.autocast`` around the jitted
function; around it with weights that were cast once; duotone's line around the optimizer; dtypes by
hand in bfloat16, for predictions with weights in bfloat16), in PyTorch (float32,
``torch.autocast``, ``torch.compile`` with it, and for predictions ``model.bfloat16()``) and, for
predictions, in ONNX Runtime (float32, and weights in int8). All have the same shapes, the same
number of parameters, AdamW, and one thread. Four models of Keras on JAX are compared among
themselves: float32, the dtype policy ``mixed_bfloat16``, and duotone's line around the optimizer.

Each way of a model has a process of its own, since thread pools disturb one another; they run in
turn, round after round, each round beginning with another one. A figure is the median over rounds
of a way's processor time over that of the first way, float32: below 1 is faster than float32.
Memory is what a process holds while it predicts, without what it held once its libraries were
imported.

``--torch PYTHON`` names an interpreter with PyTorch and NumPy, and ``onnx``, ``onnxscript`` and
``onnxruntime`` for ONNX Runtime; without it this one is asked. ``--only vit`` measures some models
and keeps the others' rows. Run it once for each version of JAX: each has its own tables in the
result.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from benchmarks._common import Bar, Result, median, table, write
from benchmarks._peers import COMPILED, ONNX, Spec
from benchmarks._peers_jax import WAYS as JAX_WAYS
from benchmarks._peers_jax import zoo_file
from benchmarks._versions import THIS_VERSION, parts, with_part

QUESTION = (
    "What do a prediction and a training step cost on this CPU, next to what users would pick?"
)
TORCH_WAYS = {
    "predict": ("torch", "torch.autocast", COMPILED, "torch in bfloat16", *ONNX),
    "train": ("torch", "torch.autocast", COMPILED),
}
KERAS_WAYS = ("Keras", "Keras, duotone", "Keras, mixed_bfloat16")
ROUNDS = 7
_SECONDS = 12.0
_LIMIT = 1.03
_LIBRARIES = {
    "torch": "numpy torch",
    "onnxruntime": "torch onnx onnxscript onnxruntime",
}
"""The packages that the interpreter of PyTorch needs for each library."""
_MISSING = (
    "{library} is not installed for {python}: its columns are left out. Install it (`pip install "
    "{needed}` in an environment of its own) and name that environment's interpreter with "
    "`--torch PYTHON`."
)


@dataclasses.dataclass(frozen=True)
class Peer:
    """A model to measure, as both libraries read it.

    Attributes:
        name: a key of the models of ``_peers_jax.py`` and ``_peers_torch_models.py``, or of
            ``_peers_keras.py``.
        shape: the numbers of the model.
        inputs: of a prediction.
        target: what its result is compared with in training; None for a model that only predicts.
        batch: of a training step, or of what is only predicted.
    """

    name: str
    shape: dict[str, Any]
    inputs: list[Spec]
    target: Spec | None
    batch: int

    def tasks(self) -> list[tuple[str, int]]:
        """The measurements, with the batch: predictions first, while the process is small."""
        if self.target is None:
            return [("predict", self.batch)]
        return [("predict", 1), ("predict", 32), ("train", self.batch)]

    def ways(self, task: str, libraries: Collection[str]) -> list[str]:
        """The ways of a task, the plain one first; without those of libraries that are missing."""
        if self.name.startswith("keras"):
            return [*KERAS_WAYS]
        return [*JAX_WAYS[task], *(way for way in TORCH_WAYS[task] if _library(way) in libraries)]


def _shape(name: str, size: str, **other: Any) -> Any:
    """The zoo's shape of a model, with other numbers for some."""
    return zoo_file(name).SHAPES[size]._replace(**other)


def _images(name: str, shape: Any) -> Peer:
    inputs = [{"shape": (shape.image, shape.image, 3)}]
    target = {"shape": (), "below": shape.classes}
    return Peer(name, shape._asdict(), inputs, target, shape.batch)


def _tokens(name: str, shape: Any) -> Peer:
    given = {"shape": (shape.length,), "below": shape.vocabulary}
    return Peer(name, shape._asdict(), [given], given, shape.batch)


def _latents(shape: Any) -> Peer:
    latent = {"shape": (shape.latent, shape.latent, 4)}
    inputs = [latent, {"shape": (), "below": 1000}, {"shape": (), "below": shape.classes}]
    return Peer("dit", shape._asdict(), inputs, latent, shape.batch)


def _generator(size: str) -> Peer:
    shape = _shape("gpt2", "full" if size == "cpu" else "tiny", context=128)
    given = shape._asdict() | {"count": 16 if size == "cpu" else 4}
    return Peer("generate", given, [{"shape": (), "below": shape.vocabulary}], None, 1)


def _keras(name: str, size: str) -> Peer:
    sizes = {"image": (64, 32), "width": (256, 32), "length": (128, 8), "layers": (4, 1)}
    numbers = {key: of_size[size != "cpu"] for key, of_size in sizes.items()}
    shape = numbers | {"heads": 4, "vocabulary": 4096, "classes": 100}
    images = {"shape": (shape["image"], shape["image"], 3)}
    tokens = {"shape": (shape["length"],), "below": shape["vocabulary"]}
    given = images if "Net" in name else tokens
    return Peer(f"keras {name}", shape, [given], {"shape": (), "below": shape["classes"]}, 8)


PEERS: dict[str, Callable[[str], Peer]] = {
    "resnet": lambda size: _images("resnet", _shape("resnet", size)),
    "convnext": lambda size: _images("convnext", _shape("convnext", size, drop=0.0)),
    "vit": lambda size: _images("vit", _shape("vit", size)),
    "mixer": lambda size: _images("mixer", _shape("mixer", size)),
    "gpt2": lambda size: _tokens("gpt2", _shape("gpt2", size)),
    "llama": lambda size: _tokens("llama", _shape("llama", size, tied=True)),
    "lstm": lambda size: _tokens("lstm", _shape("lstm", size, drop=0.0)),
    "dit": lambda size: _latents(_shape("dit", size)),
    "generate": _generator,
    "keras ResNet50V2": lambda size: _keras("ResNet50V2", size),
    "keras MobileNetV2": lambda size: _keras("MobileNetV2", size),
    "keras transformer": lambda size: _keras("transformer", size),
    "keras LSTM": lambda size: _keras("LSTM", size),
}
"""By name: each makes its model for a size of the zoo."""


class Worker:
    """The process of one way of one model.

    Args:
        python: the interpreter.
        peer: the model.
        way: of a prediction or a training step.
    """

    def __init__(self, python: str, peer: Peer, way: str) -> None:
        library = _library(way).replace("onnxruntime", "torch")
        settings = json.dumps({"case": dataclasses.asdict(peer), "way": way})
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (end closes it)
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks._peers_{library}", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._way = f"{peer.name}, {way}"

    def ask(self, **command: Any) -> dict[str, Any]:
        """The process' answer to a command of ``_peers.serve``.

        Raises:
            RuntimeError: the process ended.
        """
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        try:
            print(json.dumps(command), file=pipe, flush=True)
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"{self._way} ended:\n{self._errors.read()[-2000:]}")
        return json.loads(line)

    def end(self) -> None:
        """Ends the process."""
        self._process.communicate()
        self._errors.close()


def _library(way: str) -> str:
    names = {"Keras": "keras", "torch": "torch", "ONNX": "onnxruntime"}
    return next((name for start, name in names.items() if way.startswith(start)), "jax")


def measure(
    peer: Peer, torch: str, libraries: Collection[str], rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """A row for each task of a model.

    Args:
        peer: the model.
        torch: the interpreter for PyTorch and ONNX Runtime.
        libraries: those of the two that it has.
        rounds: at most; fewer, but three at least, where they take longer than 12 seconds.
    """
    ways = {task: peer.ways(task, libraries) for task, _ in peer.tasks()}
    workers = {}
    try:
        for way in dict.fromkeys(way for some in ways.values() for way in some):
            python = torch if _library(way) in _LIBRARIES else sys.executable
            workers[way] = Worker(python, peer, way)
        rows = []
        for task, batch in peer.tasks():
            chosen = {way: workers[way] for way in ways[task]}
            rows.append({"model": peer.name, **_task(chosen, task, batch, rounds)})
        return rows
    finally:
        for worker in workers.values():
            worker.end()


def _task(workers: dict[str, Worker], task: str, batch: int, rounds: int) -> dict[str, Any]:
    """One task in all ways, in turn."""
    ready = {way: worker.ask(task=task, batch=batch) for way, worker in workers.items()}
    failures = {way: found.pop("failed") for way, found in ready.items() if "failed" in found}
    running = [way for way in workers if way not in failures]
    counts = {ready[way]["parameters"] for way in running}
    if len(counts) != 1:
        raise RuntimeError(f"the ways of {task} have different models: {counts} parameters")
    times: dict[str, list[float]] = {way: [] for way in running}
    begun = time.perf_counter()
    for done in range(rounds):
        turn = done % len(running)
        for way in running[turn:] + running[:turn]:
            answer = workers[way].ask(times=ready[way]["times"])
            times[way].append(answer["seconds"])
        if done >= 2 and time.perf_counter() - begun > _SECONDS:
            break
    plain = times[running[0]]
    return {
        "task": task,
        "batch": batch,
        "parameters": counts.pop(),
        "seconds": {way: median(taken) for way, taken in times.items()},
        "over float32": {
            way: median([b / a for a, b in zip(plain, taken, strict=True)])
            for way, taken in times.items()
        },
        "megabytes": {way: ready[way]["memory"] for way in running},
        "failures": failures,
    }


def bars(found: dict[str, Any]) -> list[Bar]:
    """The limits: never slower than float32, and in the mean not than ``torch.autocast``."""
    made = []
    for version, part in found.items():
        for row in part["rows"]:
            ways = [way for way in row["over float32"] if "duotone" in way]
            name = f"{version}, {_name(row)}"
            made += [
                Bar(
                    f"{name}: {way}, time over float32's", row["over float32"][way], _LIMIT, "times"
                )
                for way in ways
            ]
        for task in JAX_WAYS:
            pairs = [
                row["over float32"]["duotone"] / row["over float32"]["torch.autocast"]
                for row in part["rows"]
                if row["task"] == task and {"duotone", "torch.autocast"} <= {*row["over float32"]}
            ]
            if pairs:
                name = f"{version}, {task}: duotone's time over torch.autocast's, geometric mean"
                made.append(Bar(name, statistics.geometric_mean(pairs), 1.0, "times"))
    return made


def _name(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['task']}, batch {row['batch']}"


def _table(rows: Sequence[dict[str, Any]], task: str, plain: str, ways: Sequence[str]) -> str:
    """The times of one task over those of ``plain``."""
    lines = []
    for row in rows:
        over = row["over float32"]
        cells = [
            f"{over[way]:.2f}" if way in over else "fails" if way in row["failures"] else "-"
            for way in ways
        ]
        name = f"{row['model']}, {row['batch']}"
        time_of_plain = f"{row['seconds'][plain] * 1e3:.1f}"
        lines.append([name, f"{row['parameters'] / 1e6:.1f}", time_of_plain])
        lines[-1] += cells
    return table([f"{task}, batch", "M params", f"{plain} ms", *ways], lines)


def _generation(rows: Sequence[dict[str, Any]], count: int) -> str:
    """Tokens per second, and megabytes of the process, of generation."""
    ways = [*JAX_WAYS["predict"], *TORCH_WAYS["predict"]]
    lines = []
    for row in rows:
        seconds, mega = row["seconds"], row["megabytes"]
        made = row["batch"] * count
        fast = [f"{made / seconds[way]:.1f}" if way in seconds else "-" for way in ways]
        size = [f"{mega[way]:.0f}" if way in mega else "-" for way in ways]
        lines.append([f"tokens/s, batch {row['batch']}", *fast])
        lines.append([f"MB, batch {row['batch']}", *size])
    return table(["GPT-2 small, with cache", *ways], lines)


def _text(part: dict[str, Any]) -> str:
    """The tables of one version of JAX."""
    rows = part["rows"]
    names = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
    others = [f"{name} {part.get(key) or 'not installed'}" for key, name in names.items()]
    texts = [", ".join([f"JAX {part['jax']}", *others])]
    for task, (plain, *ways) in JAX_WAYS.items():
        chosen = [row for row in rows if row["task"] == task]
        keras = [row for row in chosen if row["model"].startswith("keras")]
        zoo = [row for row in chosen if row not in keras]
        texts += [_table(zoo, task, plain, [*ways, *TORCH_WAYS[task]])] if zoo else []
        texts += [_table(keras, task, KERAS_WAYS[0], KERAS_WAYS[1:])] if keras else []
    generated = [row for row in rows if row["model"] == "generate"]
    texts += [_generation(generated, PEERS["generate"]("cpu").shape["count"])] if generated else []
    return "\n\n".join(texts)


def result(rows: Sequence[dict[str, Any]], versions: dict[str, str]) -> Result:
    """The tables of all versions of JAX, this one's new."""
    part = {"jax": jax.__version__, **versions, "rows": list(rows)}
    found = with_part("peers_cpu", part)
    text = "\n\n".join(_text(part) for part in found.values())
    text += "\n\nTimes over those of float32 in JAX or in Keras on JAX; below 1 is faster."
    command = "python -m benchmarks.peers_cpu --torch PYTHON"
    return Result("peers_cpu", QUESTION, command, bars(found), text, found)


def versions_of(python: str) -> dict[str, str]:
    """The versions of PyTorch and ONNX Runtime that an interpreter has; a line for each missing."""
    found = {}
    for library, needed in _LIBRARIES.items():
        program = f"import {needed.replace(' ', ', ')}; print({library}.__version__)"
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode:
            print(_MISSING.format(library=library, python=python, needed=needed))
        else:
            found[library] = done.stdout.strip()
    return found


def main() -> None:
    """Measures model after model, and writes the tables after each."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most, of each task")
    parser.add_argument("--torch", metavar="PYTHON", default=sys.executable)
    asked = parser.parse_args()
    versions = versions_of(asked.torch)
    known = parts("peers_cpu").get(THIS_VERSION, {"rows": []})
    rows = {row["model"]: [] for row in known["rows"]}
    for row in known["rows"]:
        rows[row["model"]].append(row)
    for name in asked.only:
        rows[name] = measure(PEERS[name]("cpu"), asked.torch, versions, asked.rounds)
        write(result([row for model in PEERS for row in rows.get(model, [])], versions))


if __name__ == "__main__":
    main()
