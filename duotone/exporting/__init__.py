"""Exports functions as files that run without duotone.

::

    export.py              lowers a function, writes the folder, compares it with the function
    export_onnx.py         writes an ONNX model instead
    export_saved_model.py  writes the program as a TensorFlow SavedModel
    export_folder.py       writes a folder with digests and the difference
    export_arguments.py    splits the arguments, gives their types and names
    refusals.py            errors for functions that cannot be exported
    exported.py            reads and checks the folder; runs its program
"""
