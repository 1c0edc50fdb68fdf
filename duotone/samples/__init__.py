"""Training programs that come with duotone, each in float32 and in mixed precision.

Called by the command line (``duotone demo``) and by the benchmarks. A sample is ordinary JAX code
that a user could have written: it reads as an example, and the tests hold it to its promises.

Files: ``digits`` (a convolutional network on handwritten digits), ``report`` (its results as
files). Who extends this: a new sample is a new file with a ``--precision``.
"""
