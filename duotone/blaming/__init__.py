"""``duotone.blame`` and healing: they compare a step with its float32 reference."""
