"""``duotone.calibrate``: measures what the values of a function are, for a policy to rely on."""
