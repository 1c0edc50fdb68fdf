"""Safety rules: each keeps full one kind of program whose result half would spoil."""
