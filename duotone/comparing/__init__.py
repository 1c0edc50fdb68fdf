"""``duotone.compare`` compares a function in float32, as written, and with duotone."""
