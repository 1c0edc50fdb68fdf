"""Applies a painting to a program, and calls the rewritten program."""
