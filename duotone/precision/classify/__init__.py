"""The class of each operation: from lists, constants, and what the program does with it."""
