"""Compile time: rerolls repeated parts, compiles few programs for many shapes, flags, the cache."""
