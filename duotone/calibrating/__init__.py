"""``duotone.calibrate`` measures the ranges of a function's values for a policy."""
