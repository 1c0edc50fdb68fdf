"""How equations with programs inside are built anew: loops, branches, calls, derivative rules."""
