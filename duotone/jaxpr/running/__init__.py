"""Carrying a painting out, and calling what it gives."""
