"""``duotone.advise`` lists what makes a step slow on a device, with remedies."""
