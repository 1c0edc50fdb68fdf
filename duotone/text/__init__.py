"""Views read records and compute nothing."""
