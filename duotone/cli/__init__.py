"""The command line: ``duotone``. One file per command; ``main`` puts them together.

Called by the console script and by ``python -m duotone``. Who extends this: a new command is a
new file with one function, and one line in ``main.py``. Commands import what they need when they
run, so ``duotone --help`` is quick, and ``import duotone`` never loads this room.
"""
