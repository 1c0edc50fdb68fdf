"""``duotone.compare``: float32, the function as written, and duotone, side by side."""
