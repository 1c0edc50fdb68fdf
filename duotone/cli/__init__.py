"""The ``duotone`` command line, with one file for each command.

A new command is a new file with one function, and a line in ``main.py``. Commands import their
dependencies when they run, so ``duotone --help`` is fast. ``import duotone`` never loads this
folder.
"""
