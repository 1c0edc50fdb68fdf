"""Text output that all views share."""
