"""What each operation is to the painter: lists, constants, and what the program does with it."""
