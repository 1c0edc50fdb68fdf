"""The cast plan, and casts before any call."""
