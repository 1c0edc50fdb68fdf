"""``python -m duotone`` is the ``duotone`` command."""

from duotone.cli.main import run

run()
