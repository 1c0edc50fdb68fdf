"""The files that the original pass writes (graphs before and after, paint buckets), and the log.

Files have TensorFlow's names, so that existing scripts can read them::

    graphdef_preop_<item>_<time>.pb            and .pb.txt    before
    graphdef_AutoMixedPrecision_<item>_<time>.pb and .pb.txt  after; not where nothing was allowed
    paintbuckets_AutoMixedPrecision_<item>_<time>.txt         the four lists

The item is ``tf_graph`` or the name of a function of the library; each is rewritten separately. The
time is in milliseconds. The text is parsable, because it omits the first line of TensorFlow's own
dumps, which is not. A decision is logged as for JAX programs.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from pathlib import Path

from google.protobuf import text_format

from duotone._files import write_atomically
from duotone.ops.entries import Kind
from duotone.precision.classify.lists import OpLists
from duotone.precision.resolved import Resolved
from duotone.tensorflow.passes import Precisions
from duotone.tensorflow.protos import GraphDef
from duotone.tensorflow.rewrite_record import BodyResult
from duotone.tensorflow.unit_facts import Facts

logger = logging.getLogger("duotone.painter")

MAIN_GRAPH = "tf_graph"
"""TensorFlow's name for the graph itself, next to its functions."""


@dataclasses.dataclass(frozen=True)
class Dump:
    """The dumps and log of the rewrite of one graph or function.

    Attributes:
        item: :data:`MAIN_GRAPH` or the name of a function.
        folder: the folder for the files, or None.
        log: whether lines are logged.
        time: part of the names of the files, milliseconds.
    """

    item: str
    folder: Path | None
    log: bool
    time: int

    def before(self, graph: GraphDef) -> None:
        """Writes the original graph."""
        self._write_graph("preop", graph)

    def after(
        self,
        graph: GraphDef,
        facts: Facts,
        precisions: Precisions,
        result: BodyResult,
    ) -> None:
        """Writes the rewritten graph and the lists, and logs the decisions.

        Args:
            graph: the rewritten graph.
            facts: its units.
            precisions: the decisions of the passes.
            result: the result of the rewrite.
        """
        if self.log:
            _log(self.item, result)
        if self.folder is None or not precisions.found_work:
            return
        self._write_graph("AutoMixedPrecision", graph)
        name = f"paintbuckets_AutoMixedPrecision_{self.suffix}.txt"
        write_atomically(self.folder / name, paint_buckets(facts.resolved.lists))

    def _write_graph(self, stage: str, graph: GraphDef) -> None:
        if self.folder is None:
            return
        file = self.folder / f"graphdef_{stage}_{self.suffix}.pb"
        write_atomically(file, graph.SerializeToString(deterministic=True))
        write_atomically(file.with_name(f"{file.name}.txt"), text_format.MessageToString(graph))

    @property
    def suffix(self) -> str:
        """The end of the names of its files."""
        # Names of functions come from the graph: none may lead out of the folder.
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.item)[:150]}_{self.time}"


def start(resolved: Resolved, item: str) -> Dump:
    """Begins the dump of one graph or function.

    Args:
        resolved: the user's policy.
        item: ``"tf_graph"`` or the name of a function.
    """
    now = time.time_ns() // 1_000_000
    dump = Dump(item, resolved.log_path, resolved.log_decisions, now)
    folder = dump.folder
    while folder is not None and (folder / f"graphdef_preop_{dump.suffix}.pb").exists():
        dump = dataclasses.replace(dump, time=dump.time + 1)  # two graphs within a millisecond
    return dump


def paint_buckets(lists: OpLists) -> str:
    """Returns the four lists as TensorFlow writes them, ops in alphabetical order."""
    parts = (
        "\n".join((f"{kind.value.capitalize()}List:", *sorted(lists.ops(kind)), ""))
        for kind in (Kind.ALLOW, Kind.DENY, Kind.INFER, Kind.CLEAR)
    )
    return "\n".join(parts)


def _log(item: str, result: BodyResult) -> None:
    """Logs one line for each decision, to standard error if the user has set no handler."""
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    for one in result.decisions:
        logger.info(
            "painting %s %s %s: %s (%s) at %s/%s, type %s",
            *(one.list, one.op, one.precision, one.words, one.rule, item, one.node, one.attribute),
        )
