"""``duotone.blame`` and healing: a step beside its float32 reference, and what went wrong."""
