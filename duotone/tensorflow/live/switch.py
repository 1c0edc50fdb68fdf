"""Switch: whether the graphs of this process are rewritten, and what happened to them.

The rewrite concerns every graph that TensorFlow runs: those of ``tf.function``, of Keras and of
Sessions. A plain ``tf.function`` becomes half too while the rewrite is on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from duotone.errors import TensorFlowError, plural
from duotone.measuring.libraries import library
from duotone.tensorflow.live import jit, options, plugin
from duotone.tensorflow.live.graphs import (
    LARGEST_TEXT,
    KeptGraph,
    LiveGraph,
    LiveSettings,
    failing,
    rewrite_live,
    rewrite_traced,
)
from duotone.tensorflow.protos import GraphDef

FLOAT32_SCOPE = "duotone_float32"
"""The name scope whose operations stay float32: updates of variables and loss scales."""
_REMEMBERED = 64
"""The number of rewritten graphs whose records are kept."""
_WHAT = "mixed precision in live TensorFlow"
logger = logging.getLogger("duotone")


class _State:
    """The state of the whole process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settings: LiveSettings | None = None
        self.graphs: deque[LiveGraph] = deque(maxlen=_REMEMBERED)
        self.largest: KeptGraph | None = None
        self.seen = threading.Event()
        self.line = ""
        self.numbers = itertools.count(1)


_state = _State()


def enable(settings: LiveSettings) -> None:
    """Switches the rewrite on, for all graphs that TensorFlow optimizes from now on.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        TensorFlowError: this TensorFlow does not call the plug-in.
    """
    tf = library("tensorflow", _WHAT, "tensorflow")
    plugin.register(tf, _rewritten, _report)
    with _state.lock:
        first = _state.settings is None
        _state.settings = settings
        _state.graphs.clear()
        _state.largest = None
        _state.line = ""
    if first:
        try:
            _check(tf)
        except BaseException:
            disable()
            raise
        jit.install(_rewritten_trace)
        if name := jit.missing():
            logger.warning(
                "TensorFlow %s has no %s: functions with jit_compile=True stay float32. "
                "Use jit_compile=False, as in model.compile(jit_compile=False).",
                tf.__version__,
                name,
            )
        options.watch_sessions(tf, is_enabled)
    _warn_of_device(tf, settings)
    options.warn_of_options(tf)
    _renew(tf)


def _warn_of_device(tf: Any, settings: LiveSettings) -> None:
    """Logs which graphs change if no device here is made for the half type."""
    for_gpus = settings.dtype == "float16" and not settings.any_device
    if for_gpus and not tf.config.list_physical_devices("GPU"):
        logger.warning(
            "only functions with jit_compile=True are rewritten: float16 is for operations on "
            "GPUs, and TensorFlow has found none. dtype='bfloat16' is for CPUs."
        )


def disable() -> None:
    """Switches the rewrite of live graphs off: TensorFlow runs them in float32 again.

    Wrapped optimizers keep scaling the loss. Functions with ``jit_compile=True`` that were traced
    before stay as they are.

    Example:
        >>> import duotone.tensorflow
        >>> duotone.tensorflow.disable_mixed_precision_graph_rewrite()
    """
    with _state.lock:
        was_on, _state.settings = _state.settings is not None, None
    if was_on:
        _renew(library("tensorflow", _WHAT, "tensorflow"))


@contextlib.contextmanager
def plain(tf: Any) -> Iterator[None]:
    """Yields a context in which TensorFlow runs graphs as they are: no optimizer changes them."""
    with _state.lock:
        settings, _state.settings = _state.settings, None
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        with _state.lock:
            _state.settings = settings
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})
        _renew(tf)


def is_enabled() -> bool:
    """Returns True while graphs are rewritten."""
    return _state.settings is not None


def settings() -> LiveSettings | None:
    """Returns how graphs are rewritten; None while the rewrite is off."""
    return _state.settings


def rewritten_graphs() -> tuple[LiveGraph, ...]:
    """Returns the graphs that were rewritten since the rewrite was switched on, oldest first."""
    return tuple(_state.graphs)


def largest_graph() -> KeptGraph | None:
    """Returns the graph with the most nodes that was rewritten; the latest of several."""
    return _state.largest


def _renew(tf: Any) -> None:
    """Makes TensorFlow optimize its functions again.

    TensorFlow reuses optimized functions as long as its options are equal, so this changes an
    option without an effect: any negative ``min_graph_nodes`` optimizes graphs of every size.
    """
    renewed = {"use_plugin_optimizers": True, "min_graph_nodes": -next(_state.numbers)}
    tf.config.optimizer.set_experimental_options(renewed)


def _check(tf: Any) -> None:
    """Runs a small graph."""
    _state.seen.clear()
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 2), "x")
        y = tf.identity(tf.exp(tf.exp(x)), "y")
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            session.run(y, {x: [[0.0, 0.0], [0.0, 0.0]]})
    if not _state.seen.is_set():
        raise TensorFlowError(
            f"TensorFlow {tf.__version__} does not call duotone's plug-in, so graphs would run in "
            "float32. It was tested with TensorFlow 2.21. Is another plug-in registered for the "
            "same device?"
        )


def _rewritten(data: bytes, preserved: Sequence[str]) -> bytes | None:
    """Returns the graph that runs instead of one, or None; TensorFlow calls it in any thread."""
    _state.seen.set()
    settings = _state.settings
    if settings is None:
        return None
    try:
        found = rewrite_live(data, preserved, settings)
    except Exception as error:
        _report(error)
        return failing(data, preserved, f"duotone could not rewrite this graph: {error}")
    if found is None:
        return None
    made, done = found
    _remember(done, KeptGraph(done.nodes, settings, tuple(preserved), (data, made)))
    return made


def _rewritten_trace(graph: GraphDef, name: str) -> LiveGraph | None:
    """Rewrites the functions of a graph that calls one that XLA compiles; errors are raised."""
    settings = _state.settings
    if settings is None:
        return None
    before = graph.SerializeToString()
    done = rewrite_traced(graph, name, settings)
    texts = before, graph.SerializeToString()
    _remember(done, KeptGraph(done.nodes, settings, (), texts, name))
    return done


def _remember(done: LiveGraph, graph: KeptGraph) -> None:
    """Keeps the record of a graph and the largest graph; logs one line about the first rewrite."""
    if not done.half:
        return
    if max(map(len, graph.texts)) > LARGEST_TEXT:
        graph = dataclasses.replace(graph, texts=())
    with _state.lock:
        _state.graphs.append(done)
        if _state.largest is None or done.nodes >= _state.largest.nodes:
            _state.largest = graph
    painter = graph.settings.painter
    unsafe = f", and which nodes the painter {painter!r} makes half against a safety rule"
    line = (
        f"rewrote a graph of {plural(done.nodes, 'node')}: {done.half} in {graph.settings.dtype}, "
        f"{plural(len(done.result.casts), 'cast')}, in {done.seconds:.2f} s. duotone.tensorflow."
        f"explain_last() shows all graphs{'' if painter == 'duotone' else unsafe}."
    )
    with _state.lock:
        said, _state.line = bool(_state.line), _state.line or line
    if not said:
        logger.info("%s", line)


def _report(error: BaseException) -> None:
    logger.error("duotone could not rewrite a graph of TensorFlow: %s", error, exc_info=error)


def first_line() -> str:
    """Returns the line about the first graph that was rewritten; empty if none was."""
    return _state.line
