"""Functions exported as files that run without duotone.

::

    export.py     traces and lowers a function, writes the folder, compares it with the function
    onnx.py       writes an ONNX model instead
    saved_model.py  writes the program as a TensorFlow SavedModel
    arguments.py  divides the arguments, and gives their types
    comparison.py results of a function and of its export, as one number
    exported.py   the folder, read and checked; its program can be called

Who calls this: users, as ``duotone.export`` and ``duotone.read_export``.
"""
