"""The README of this folder, generated from the results by ``python -m benchmarks._readme``."""

from __future__ import annotations

import json
from pathlib import Path

_HEAD = """\
# Benchmarks

Each file answers one question. Its first line is its command, and `results/` has its last result as
JSON and as text. `python -m benchmarks._readme` generates this page from those results: do not edit
it. [NOTES.md](NOTES.md) says what was tried and did not work.

Run the commands from the root of the checkout, with `duotone[dev]` installed; `make bench` runs
them all. Times are medians, taken side by side in one run. Compare them as ratios: absolute figures
belong to the processor named with them.
"""


def render(results: Path) -> str:
    """The page for the results in a folder."""
    return "\n".join([_HEAD, *[_section(file) for file in sorted(results.glob("*.json"))]])


def _section(file: Path) -> str:
    data = json.loads(file.read_text())
    around = data["environment"]
    lines = [f"## {data['question']}", "", "```console", f"$ {data['command']}", "```", ""]
    if data["bars"]:
        lines += ["| measured | result | at most | |", "|---|--:|--:|---|"]
        lines += [
            f"| {bar['name']} | {bar['value']:.4g} {bar['unit']} | {bar['limit']:g} {bar['unit']} "
            f"| {'kept' if bar['kept'] else '**missed**'} |"
            for bar in data["bars"]
        ]
        lines.append("")
    lines.append(
        f"[Tables](results/{file.stem}.txt), [data](results/{file.name}). {versions(around)}, "
        f"{around['cores']} cores of {around['processor']}."
    )
    return "\n".join(lines) + "\n"


def versions(around: dict[str, str]) -> str:
    """The versions in the environment of a result, in words."""
    names = ("Python", "JAX", "Flax", "TensorFlow")
    return ", ".join(f"{name} {around[name.lower()]}" for name in names if name.lower() in around)


if __name__ == "__main__":
    _here = Path(__file__).parent
    (_here / "README.md").write_text(render(_here / "results"))
