"""Checks for problems that make a step slow, one function each.

Each check reads a :class:`~duotone.advising.step_model.StepModel` and yields findings. The costs
come from :mod:`duotone.cost.estimate`.
"""
