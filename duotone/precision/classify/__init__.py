"""The class of each operation: from lists, constants, and its role in the program."""
