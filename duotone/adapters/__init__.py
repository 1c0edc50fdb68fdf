"""Adapters: duotone in the terms of other libraries, one thin file each.

``optax`` (an optimizer with a loss scale) and the files beside it use the public parts of duotone:
``autocast``, the loss scales, policies. An adapter alone imports the library it is for, and is
itself imported only where that library is in use, so that ``import duotone`` loads none of them.
"""

ENABLE = "enable_mixed_precision_graph_rewrite"
"""The function that users call, for the errors of every adapter."""
