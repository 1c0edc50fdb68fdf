"""A rewritten program beside its float32 twin: what ``blame`` looks at."""
