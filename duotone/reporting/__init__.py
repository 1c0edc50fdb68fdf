"""``duotone.report``: one HTML page about a step."""
