"""The cost of a program on a device, compiled or estimated: bytes, FLOPs, memory, time."""
