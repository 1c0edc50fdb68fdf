"""A small program with names that would break a careless page, and its data read back."""

from __future__ import annotations

import json
import re
from typing import Any

from duotone.precision.record import Record, make_record
from tests.graph.tiny import FLOAT16, Tiny

HOSTILE = "</script><script>window.broken=1</script><b>\"'&amp;${x}`ü\u2028漢"


def record(*scopes: str, size: int = 6400) -> Record:
    t = Tiny()
    h = t.input(size)
    for scope in scopes:
        with t.scope(scope):
            dot = t.op("dot", h, t.input(640), size=size, flops=2.5e9)
            h = t.op("exp", dot, size=size, flops=64.0)
    t.returns(t.op("mystery", h))
    p = t.paint()
    return make_record(p.graph, p.classes, p.painting, p.plan, FLOAT16)


def data_of(page: str) -> dict[str, Any]:
    """The JSON of a page, as a browser finds it: up to the first end of the script."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])
