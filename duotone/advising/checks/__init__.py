"""Checks of what makes a step slow: one function a fault, all of one signature.

They read a :class:`~duotone.advising.step_model.StepModel` (the step as it runs, its kernels on the
target, its arguments) and yield findings; the costs are those of :mod:`duotone.cost.estimate`.
"""
