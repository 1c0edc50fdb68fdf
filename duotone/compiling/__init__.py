"""Compile time: repeated parts rolled up, many shapes compiled as few, flags, the cache."""
