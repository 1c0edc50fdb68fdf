"""Inputs for models that run in their own runtime, and the differences of their results."""
