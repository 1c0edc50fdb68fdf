"""Plans: what is carried out in another form than it was written in, beside its colours.

Each plan is made by a stage of its own, for devices that gain from it (``targets/forms.py``). None
changes a painting, but for the two dots of a trilinear sum, which are stored full; and none changes
what is calculated by more than where roundings fall.

Who calls this: :mod:`duotone.road` fills it, :mod:`duotone.jaxpr.rewrite` carries it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from duotone.graph.factors import Factored
from duotone.graph.graph import Graph
from duotone.graph.picks import Picked
from duotone.graph.residuals import NOTHING, Recompute
from duotone.graph.trilinear import Trilinears


@dataclasses.dataclass(frozen=True, slots=True)
class Plans:
    """The plans of one program.

    Attributes:
        recompute: which reads take a value calculated again.
        factored: the sums from which factors are taken out, by node.
        trilinear: the sums of products with a dot that another dot gives.
        picked: the gathers that come before what their operand is calculated by, by node.
        joined: additions that the operation before them carries out.
    """

    recompute: Recompute = NOTHING
    factored: Mapping[int, Factored] = dataclasses.field(default_factory=dict)
    trilinear: Trilinears = dataclasses.field(default_factory=Trilinears)
    picked: Mapping[int, Picked] = dataclasses.field(default_factory=dict)
    joined: frozenset[int] = frozenset()

    def nodes(self, graph: Graph) -> set[int]:
        """The nodes that must be carried out one by one, whatever their colour.

        Also those that make what a plan reads: it may be inside of a nested call otherwise.
        """
        found = self.recompute.nodes(graph) | {*self.factored, *self.picked} | self.trilinear.nodes
        reads = {*self.trilinear.reads}
        for factored in self.factored.values():
            reads |= {factored.value, *(value for value, _ in factored.factors)}
        for picked in self.picked.values():
            reads |= {*picked.chain, *picked.roots}
        return found | {graph.values[value].producer for value in reads}
