"""A rewritten program beside its float32 reference: what ``blame`` looks at."""
