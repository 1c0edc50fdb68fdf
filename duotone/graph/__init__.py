"""The graph of a program, what decides about it, and the record; no framework is known here."""
