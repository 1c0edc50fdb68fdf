"""``duotone.explain``: a painted program as text, rows, graphs, a summary line and a page."""
