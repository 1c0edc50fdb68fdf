"""Where casts stand: the plan, and casts before any call."""
