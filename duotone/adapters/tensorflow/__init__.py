"""Optimizers of live TensorFlow: Keras 3, and ``tf.compat.v1.train``.

::

    loss * scale ─ gradients ─ / scale ─ finite? ─ all replicas ─ update, or skip ─ new scale

``rule`` has the requested loss scale, ``settings`` all arguments and the switch of the process,
``scaling`` the arithmetic, ``replicas`` the decision that all replicas share, ``statistics`` what a
skipped step restores, ``fitting`` the hook into Keras' ``fit``, ``keras`` and ``v1`` the two
optimizers.

These modules import TensorFlow and need no JAX. ``duotone.tensorflow.live`` rewrites the graphs.
"""
