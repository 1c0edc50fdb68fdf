"""``python -m duotone.cli`` is ``duotone``."""

from duotone.cli.main import run

run()
