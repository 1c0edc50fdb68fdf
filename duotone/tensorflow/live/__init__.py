"""Live TensorFlow: the rewrite of every graph that a running program executes.

::

    Session, tf.function ─ TensorFlow places, inlines and lowers ─► Grappler ─► plugin
          ─ unfuse ─ rewrite_body ─► the graph that runs

Grappler is TensorFlow's optimizer of graphs. ``c_api`` has the structures of its plug-ins,
``plugin`` registers one, ``graphs`` rewrites a graph, and ``switch`` is the state of the process.
"""
