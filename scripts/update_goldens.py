"""Writes the golden files of tests/golden anew, for the version of JAX it runs under.

    python scripts/update_goldens.py

A version's folder holds only what differs from older versions, so run it under the oldest version
first. Read the difference before you keep it: each changed line is an operation painted otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden.paintings import CASES, golden, own_file, render


def main() -> None:
    """Writes the files of this version and says which have changed."""
    for case in CASES:
        path, text = own_file(*case), render(*case)
        before = path.read_text() if path.exists() else ""
        if text == golden(*case, own=False):
            path.unlink(missing_ok=True)
            text = ""
        elif text != before:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        if text != before:
            print(f"{'changed' if text else 'removed'}: {path.parent.name}/{path.name}")


if __name__ == "__main__":
    main()
