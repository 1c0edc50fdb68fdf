"""The files that the original pass writes: graphs before and after, paint buckets, log lines.

Files have TensorFlow's names, so that existing scripts can read them::

    graphdef_preop_<item>_<time>.pb            and .pb.txt    before
    graphdef_AutoMixedPrecision_<item>_<time>.pb and .pb.txt  after; not where nothing was allowed
    paintbuckets_AutoMixedPrecision_<item>_<time>.txt         the four lists

The item is ``tf_graph`` or the name of a function of the library; each is rewritten separately. The
time is in milliseconds. The text is parsable, because it omits the first line of TensorFlow's own
dumps, which is not. ``log_lines`` has the lines of the log.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Iterable, Sequence

from google.protobuf import text_format

from duotone._files import write_atomically
from duotone.ops.entries import Kind
from duotone.precision.classify.lists import OpLists
from duotone.precision.resolved import Resolved
from duotone.tensorflow.log_lines import Rewrite, log_lines
from duotone.tensorflow.passes import Precisions
from duotone.tensorflow.protos import GraphDef
from duotone.tensorflow.rewrite_record import BodyResult
from duotone.tensorflow.unit_facts import Facts

logger = logging.getLogger("duotone.painter")


@dataclasses.dataclass(frozen=True)
class Dump:
    """The dumps and log of the rewrite of one graph or function.

    Attributes:
        resolved: the user's policy.
        item: ``"tf_graph"`` or the name of a function.
        time: part of the names of the files, milliseconds.
    """

    resolved: Resolved
    item: str
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
        preserved: Sequence[bool],
    ) -> None:
        """Writes the rewritten graph, the lists, and the lines of the log."""
        level, folder = self.resolved.level or "", self.resolved.log_path
        if self.resolved.log_decisions:
            _log(log_lines(Rewrite(self.item, level, preserved, facts, precisions, result)))
        if folder is None or not precisions.found_work:
            return
        self._write_graph("AutoMixedPrecision", graph)
        name = f"paintbuckets_AutoMixedPrecision_{self.suffix}.txt"
        write_atomically(folder / name, paint_buckets(facts.resolved.lists))

    def _write_graph(self, stage: str, graph: GraphDef) -> None:
        if self.resolved.log_path is None:
            return
        file = self.resolved.log_path / f"graphdef_{stage}_{self.suffix}.pb"
        write_atomically(file, graph.SerializeToString(deterministic=True))
        write_atomically(file.with_name(f"{file.name}.txt"), text_format.MessageToString(graph))

    @property
    def suffix(self) -> str:
        """The end of the names of its files."""
        # Names of functions come from the graph: none may lead out of the folder.
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.item)[:150]}_{self.time}"


def start(resolved: Resolved, item: str) -> Dump:
    """Begins the dump of one graph or function."""
    dump, folder = Dump(resolved, item, time.time_ns() // 1_000_000), resolved.log_path
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


def _log(lines: Iterable[str]) -> None:
    """Logs to standard error unless logging is set up otherwise."""
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    for line in lines:
        logger.info(line)
