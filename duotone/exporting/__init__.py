"""Functions exported as files that run without duotone.

::

    export.py       traces and lowers a function, writes the folder, compares it with the function
    onnx.py         writes an ONNX model instead
    saved_model.py  writes the program as a TensorFlow SavedModel
    arguments.py    divides the arguments, gives their types and names
    refusals.py     what cannot be exported, in one line
    comparison.py   results of a function and of its export, as one number
    exported.py     the folder, read and checked; its program can be called
"""
