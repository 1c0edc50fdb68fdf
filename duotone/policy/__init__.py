"""The policy of a user: its fields, its file, the environment, and regions of the code."""
