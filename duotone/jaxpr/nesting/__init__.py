"""How equations with nested programs are rebuilt: loops, branches, calls, derivative rules."""
