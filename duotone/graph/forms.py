"""The forms of a dot, of which a device runs one fast; see :mod:`duotone.jaxpr.rules.dots`."""

from __future__ import annotations

PLAIN, ROWS, WIDENED = "plain", "rows", "widened"
