"""Functions exported as files that run without duotone.

::

    export.py     traces and lowers a function, writes the folder, compares it with the function
    exported.py   the folder, read and checked; its program can be called

Who calls this: users, as ``duotone.export`` and ``duotone.read_export``.
"""
