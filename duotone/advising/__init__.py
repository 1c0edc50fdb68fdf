"""``duotone.advise``: what makes a step slow on a device, and what to do about it."""
