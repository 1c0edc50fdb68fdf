"""Rules: why a node has its precision. Stages decide by these marks; people read their words.

Rules of other kinds, one for each operation, are in ``duotone/jaxpr/rules/`` (how it is bound) and
``duotone/precision/ranges/intervals.py`` (its interval).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Rule(enum.StrEnum):
    """The rule that decided on a node.

    The value is the name that stands in records and logs.

    Attributes:
        words: what the rule says, for people.

    Example:
        >>> str(Rule.TAINT), Rule.TAINT.words
        ('taint', 'a denied value reaches it along a dominant operand')
    """

    words: str

    def __new__(cls, name: str, words: str) -> Rule:
        """Makes a rule of its name and what it says."""
        rule = str.__new__(cls, name)
        rule._value_ = name
        rule.words = words
        return rule

    ALLOW = "allow", "on the allow list: takes half operands and accumulates in float32"
    WIDE = (
        "wide",
        "on the allow list; all that read the result read it full, so it is never rounded",
    )
    UNROUNDED = (
        "unrounded",
        "on the allow list; its float32 sums cancel where rounded ones would not",
    )
    DENY = "deny", "on the deny list: computes in float32"
    CONSTANT = "constant", "calculates with a constant that half cannot represent"
    SOLVE = (
        "solve",
        "leads to a factorisation or a solve, or reads its result, with no dot in between",
    )
    ITERATION = "iteration", "in a loop that multiplies a state with matrices again and again"
    DISTANCE = "distance", "part of a squared distance: large terms of which little is left"
    CARRY = "carry", "a sum over iterations, or in a loop that may never end in half"
    POSITION = "position", "a position or a count, or leads to one: its absolute error counts"
    LOG_POWER = "log_power", "a logarithm or a root reads its power: its relative error counts"
    CANCELLATION = (
        "cancellation",
        "its distance from its limit is read, by a logarithm or a division, say",
    )
    OVERFLOW = "overflow", "what it makes or reads does not fit half"
    UNDERFLOW = "underflow", "most of its measured values are below the normal numbers of half"
    RANGE = (
        "range",
        "computes in float32 and stores half: its range fits and loses nothing that matters",
    )
    SMALL = "small", "an allow operation too small to gain from half on this device"
    DEVICE = "device", "gains nothing from half on this device"
    TAINT = "taint", "a denied value reaches it along a dominant operand"
    DOWNSTREAM = "downstream", "its dominant operand is half and nothing denied reaches it"
    MIXED = "mixed", "stores half like its dominant operand, computes full like another operand"
    OPERAND = (
        "operand",
        "computes full, stores half: dots read it half, and all else only adds it up",
    )
    FULL_READERS = (
        "full_readers",
        "all that read it compute full: it is not worth storing, so half would only round",
    )
    UPSTREAM = (
        "upstream",
        "all that read its result read it half, and the cast costs no more before it",
    )
    WEIGHTS = "weights", "only moves weights, which are cast once for all before any call"
    CUT = "cut", "either precision is right here; with this one fewer values are cast"
    STATE = "state", "reaches an output of the function with no allow operation after it"
    NO_HALF_OPERAND = "no_half_operand", "no dominant operand is half"
    UNLISTED = "unlisted", "on no list: left as it is"
    FIXED = "fixed", "cannot be half"
    INTEGER = "integer", "no float32 operand or result: integers, or half as it was written"
    PINNED = "pinned", "the user decided"
    UPDATE = "update", "the optimizer's update, the loss scale and their checks stay float32"
    OFF = "off", "mixed precision is switched off"
    TENSORFLOW = "tensorflow", "TensorFlow's passes decided"
    REWRITTEN = "rewritten", "made of a rewritten program by a transformation; read from its types"

    @property
    def is_decided_before(self) -> bool:
        """True if the node had its precision before any painter: denied, pinned, or never half."""
        return self in _BEFORE_PAINTING


WORDS: Mapping[str, str] = MappingProxyType({rule.value: rule.words for rule in Rule})
"""The words of each rule, by name. A record of another version may name a rule not here."""

_BEFORE_PAINTING = frozenset(
    {
        Rule.PINNED,
        Rule.UPDATE,
        Rule.FIXED,
        Rule.UNLISTED,
        Rule.INTEGER,
        Rule.DENY,
        Rule.CONSTANT,
        Rule.SOLVE,
        Rule.ITERATION,
        Rule.DISTANCE,
        Rule.CARRY,
        Rule.POSITION,
        Rule.LOG_POWER,
        Rule.CANCELLATION,
        Rule.OVERFLOW,
    }
)
