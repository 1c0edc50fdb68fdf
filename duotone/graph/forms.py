"""The forms of a dot; a device runs only one of them fast (:mod:`duotone.jaxpr.rules.dots`)."""

from __future__ import annotations

PLAIN, ROWS, WIDENED = "plain", "rows", "widened"
