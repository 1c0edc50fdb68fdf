"""duotone.measuring: inputs for models that run in their own runtime, and how results differ."""
