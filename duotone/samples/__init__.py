"""Training programs that come with duotone, each in float32 and in mixed precision.

A sample is ordinary JAX code that a user could have written. ``digits`` trains a convolutional
network on handwritten digits, and ``training_report`` writes its results.
"""
