"""Safety rules: each keeps one kind of program full whose result half would spoil."""
