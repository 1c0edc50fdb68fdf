"""Adapters: duotone for other libraries, one thin file each.

The adapters use the public parts of duotone: ``autocast``, the loss scales, policies. Only the
adapter of a library imports that library, and duotone imports an adapter only if the library is in
use, so that ``import duotone`` loads none of them.
"""

ENABLE = "enable_mixed_precision_graph_rewrite"
"""The name of the function that users call, for the errors of every adapter."""
