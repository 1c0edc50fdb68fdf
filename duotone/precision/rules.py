"""Rules: why a node has its precision. Stages decide by these marks; people read their words.

Two other kinds of rules exist for each operation: ``duotone/jaxpr/rules/`` says how it is bound,
and ``duotone/precision/ranges/intervals.py`` computes its interval.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Rule(enum.StrEnum):
    """The rule that decided on a node.

    The value is the name that records and logs contain.

    Attributes:
        words: an explanation for people.

    Example:
        >>> str(Rule.TAINT), Rule.TAINT.words
        ('taint', 'a denied value reaches it along a dominant operand')
    """

    words: str

    def __new__(cls, name: str, words: str) -> Rule:
        """Makes a rule from its name and its words."""
        rule = str.__new__(cls, name)
        rule._value_ = name
        rule.words = words
        return rule

    ALLOW = "allow", "on the allow list: takes half operands and accumulates in float32"
    WIDE = (
        "wide",
        "on the allow list; all readers of the result are full, so it is never rounded",
    )
    UNROUNDED = (
        "unrounded",
        "on the allow list; its float32 result cancels where a rounded one would not",
    )
    ITERATIONS = (
        "iterations",
        "one dot for all iterations of a loop, alone too short; its operands are half anyway",
    )
    DENY = "deny", "on the deny list: computes in float32"
    CONSTANT = "constant", "computes with a constant that half cannot represent"
    SOLVE = (
        "solve",
        "leads to a factorization or a solve, or reads its result, with no dot in between",
    )
    ITERATION = "iteration", "in a loop that repeatedly multiplies its state with matrices"
    DISTANCE = (
        "distance",
        "part of a squared distance, or the rest of an average or projection: terms nearly cancel",
    )
    CARRY = (
        "carry",
        "a sum over iterations, a step of a descent, or in a loop that may never end in half",
    )
    POSITION = "position", "a position or a count, or leads to one: its absolute error counts"
    SEGMENT = "segment", "adds more updates into an element than half can count"
    LOG_POWER = "log_power", "a logarithm or a root reads its power: its relative error counts"
    QUOTIENT = "quotient", "a small difference of its results is divided by a small number"
    CANCELLATION = (
        "cancellation",
        "a logarithm or a division, for example, reads how close it is to its limit",
    )
    REPEATED = "repeated", "computes the same as an operation that a safety rule keeps float32"
    OVERFLOW = "overflow", "its result or an operand does not fit half"
    UNDERFLOW = "underflow", "most of its measured values are below the normal range of half"
    RANGE = (
        "range",
        "computes in float32 and stores half: its range fits and loses nothing that matters",
    )
    SMALL = "small", "an allow operation too small to be faster in half on this device"
    DEVICE = "device", "not faster in half on this device"
    TAINT = "taint", "a denied value reaches it along a dominant operand"
    DOWNSTREAM = "downstream", "its dominant operand is half and nothing denied reaches it"
    MIXED = "mixed", "stores half like its dominant operand, computes full like another one"
    OPERAND = (
        "operand",
        "computes full, stores half: dots read it in half, and all other readers only sum it",
    )
    FULL_READERS = (
        "full_readers",
        "all readers compute full: it is rarely stored, so half would only round",
    )
    UPSTREAM = (
        "upstream",
        "all readers of its result are half, and a cast before it costs no more",
    )
    WEIGHTS = "weights", "only moves weights, which are cast once, before any call"
    CUT = "cut", "either precision is right here; this one casts fewer values"
    STATE = "state", "reaches an output of the function with no allow operation after it"
    NO_HALF_OPERAND = "no_half_operand", "no dominant operand is half"
    UNLISTED = "unlisted", "on no list: unchanged"
    FIXED = "fixed", "cannot be half"
    INTEGER = "integer", "no float32 operand or result: integers, or half in the original program"
    PINNED = "pinned", "the user decided"
    UPDATE = "update", "the optimizer's update, the loss scale and their checks stay float32"
    OFF = "off", "mixed precision is switched off"
    TENSORFLOW = "tensorflow", "TensorFlow's passes decided"
    REWRITTEN = (
        "rewritten",
        "a transformation made it from a rewritten program; read from its types",
    )

    @property
    def is_decided_before(self) -> bool:
        """True if the node had its precision before painting: denied, pinned, or never half."""
        return self in _BEFORE_PAINTING


WORDS: Mapping[str, str] = MappingProxyType({rule.value: rule.words for rule in Rule})
"""The words of each rule, by name. A record of another version may name an unknown rule."""

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
        Rule.SEGMENT,
        Rule.LOG_POWER,
        Rule.QUOTIENT,
        Rule.CANCELLATION,
        Rule.REPEATED,
        Rule.OVERFLOW,
    }
)
