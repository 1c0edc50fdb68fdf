"""The record that ``explain`` returns, with its views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from duotone._checks import path_of
from duotone._files import write_atomically
from duotone.explaining.difference import RecordDifference, difference
from duotone.explaining.operation_rows import Rows
from duotone.explaining.overview import Overview
from duotone.precision.record import Record
from duotone.text.lines import Viewed

if TYPE_CHECKING:
    from duotone.explaining.page.assemble import Sections


_SHORT_TREE = 15
"""The most lines of the tree in a ``repr``."""


class Explanation(Viewed, Record):
    """The effect of a painting on a function, and why: a :class:`~duotone.precision.record.Record`.

    ``print`` and notebooks show an overview: totals, the rules that keep operations full, and a
    tree of name scopes. ``repr`` shows a shorter tree. :meth:`rows` shows single operations,
    :meth:`to_json` gives data, :meth:`to_html` a page, and :meth:`to_tensorboard` and
    :meth:`to_model_explorer` colored graphs.
    """

    def rows(
        self, where: str | None = None, *, rule: str | None = None, most: int | None = None
    ) -> Rows:
        """Returns operations in program order, as a sequence that prints one line each.

        Args:
            where: a shell pattern over name scope and operation, as in a policy:
                ``"*/attention/*"``.
            rule: keeps only operations that this rule painted; see ``docs/rules.md``.
            most: keeps at most this many operations, those with the most bytes.

        Raises:
            ArgumentTypeError: an argument has the wrong type.
            ArgumentError: there is no such rule, nothing matches, or ``most`` is below 0.

        Example:
            >>> import jax, jax.numpy as jnp, duotone
            >>> seen = duotone.explain(lambda x: jnp.exp(x @ x), jnp.ones((8, 8)), dtype="float16")
            >>> [row.operation for row in seen.rows(rule="deny")]
            ['exp']
        """
        return Rows(self, where, rule, most)

    def __rich__(self) -> Overview:
        return Overview(self)

    def __repr__(self) -> str:
        return repr(Overview(self, _SHORT_TREE))

    def difference(
        self, other: Record, names: tuple[str, str] = ("here", "there")
    ) -> RecordDifference:
        """Returns the operations that another record of the same program paints differently.

        Args:
            other: a record of the same function and arguments, for another device, dtype or
                policy.
            names: names of this record and the other, for the text.

        Raises:
            ArgumentTypeError: ``other`` is not a record, or ``names`` is not a pair of strings.
            ArgumentError: the other record is of another program.

        Example:
            >>> import jax.numpy as jnp, duotone
            >>> fn, x = lambda x: jnp.exp(x @ x), jnp.ones((8, 8))
            >>> here = duotone.explain(fn, x, target="h200")
            >>> here.difference(duotone.explain(fn, x, target="cpu"), ("h200", "cpu")).total
            2
        """
        return difference(self, other, names)

    def to_html(self, **sections: Unpack[Sections]) -> str:
        """Returns the report page as self-contained HTML; :func:`duotone.report` writes it.

        Args:
            **sections: ``title``, ``comparison``, ``blame``, ``advice`` and ``history`` as for
                :func:`duotone.report`; ``about``, a line below the title.

        Raises:
            ArgumentError, ArgumentTypeError: a section is unknown, or not in its form.
        """
        from duotone.explaining.page.assemble import make_page

        return make_page(self, **sections)

    def to_tensorboard(self, logdir: str | Path) -> None:
        """Writes the graph for TensorBoard: Graphs, Color by Device (``docs/tensorflow.md``).

        Args:
            logdir: the log folder, created if missing.

        Raises:
            ArgumentError: the folder cannot be made.
            MissingExtraError: TensorBoard is not installed.
        """
        from duotone.explaining import tensorboard

        tensorboard.write_record(path_of("to_tensorboard", "logdir", logdir), self)

    def to_model_explorer(self, file: str | Path) -> None:
        """Writes the graph for Model Explorer, to open with ``model-explorer FILE``.

        Args:
            file: a JSON file, which is overwritten.

        Raises:
            WriteError: the file system refuses the file.

        Example:
            >>> import tempfile, jax.numpy as jnp, duotone
            >>> seen = duotone.explain(lambda x: x @ x, jnp.ones((8, 8)), dtype="float16")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     seen.to_model_explorer(f"{folder}/graph.json")
        """
        from duotone.explaining.model_explorer import collection_of_record

        write_atomically(path_of("to_model_explorer", "file", file), collection_of_record(self))
