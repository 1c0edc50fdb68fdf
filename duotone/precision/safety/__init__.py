"""Safety rules: each one keeps full a kind of computation that half would spoil."""
