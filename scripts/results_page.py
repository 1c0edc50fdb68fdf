"""Writes ``docs/results.md`` and its pictures from ``benchmarks/results``.

python scripts/results_page.py            # writes them
python scripts/results_page.py --check    # fails if one is not up to date

The pictures are SVG without a background, in colors that are easy to tell apart on white and on
black, so one file serves both themes. ``make bench`` calls this, and the tests call it with
``--check``. A picture is a function and a line in ``PICTURES``; the tables are those of
``scripts/readme_results.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from readme_results import TABLES  # noqa: E402

from benchmarks._readme import versions  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
LONGEST_TEXT = 32
"""A benchmark's own tables are shown up to so many lines; longer ones are named."""
MOST_BARS = 12
"""Bars are listed one by one up to here; of more, the missed ones."""

_HEAD = """\
<!-- written by scripts/results_page.py from benchmarks/results; do not edit -->
# Results

Each section is one benchmark: its question, its command and its last result, with missed bars next
to kept ones. `benchmarks/README.md` lists every bar, `benchmarks/results/` has the records, and
`benchmarks/NOTES.md` says what was tried and did not work. [What was measured](measured.md) says
which decisions follow from the results.

Where a section does not name a GPU that was there, GPU and TPU steps were compiled by the device's
compiler and **not run**: bytes and memory are those of the compiled program, times are rooflines.
Times of CPUs and of the GPU were measured side by side in one run.
Compare ratios only: absolute figures belong to the processor named below each section.
"""

COLORS = {"duotone": "#0090d0", "by hand": "#e69f00"}  # after Okabe and Ito
GREY = "#808080"


def page() -> str:
    """The whole page."""
    files = sorted(RESULTS.glob("*.json"))
    return "\n".join([_HEAD, *(section(file) for file in files)])


def section(file: Path) -> str:
    """One benchmark: question, command, picture, tables, bars, and where it ran."""
    data = json.loads(file.read_text(encoding="utf-8"))
    parts = [f"## {data['question']}", f"```shell\n{data['command']}\n```"]
    if file.stem in PICTURES:
        name, alternative, _ = PICTURES[file.stem]
        parts.append(f"![{alternative}]({name})")
    if file.stem in TABLES:
        parts.append(_table(TABLES[file.stem](data["figures"])))
    else:
        parts.append(_text(file.with_suffix(".txt")))
    if data["bars"]:
        parts.append(_bars(data["bars"]))
    around = data["environment"]
    parts.append(f"{versions(around)}, {around['cores']} cores of {around['processor']}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: list[list[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])


def _text(file: Path) -> str:
    """The tables that the benchmark printed, without the lines that stand elsewhere on the page."""
    text = file.read_text(encoding="utf-8")
    lines = [line.rstrip() for line in text.splitlines()[4:]]
    lines = [line for line in lines if not line.startswith(("kept ", "MISSED "))]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) > LONGEST_TEXT:
        return f"{len(lines)} lines of tables: `benchmarks/results/{file.name}`."
    return "```text\n" + "\n".join(lines) + "\n```" if lines else ""


def _bars(bars: list[dict[str, Any]]) -> str:
    shown = bars if len(bars) <= MOST_BARS else [bar for bar in bars if not bar["kept"]]
    kept = sum(bar["kept"] for bar in bars)
    said = f"{kept} of {len(bars)} bars kept"
    if not shown:
        return f"{said}."
    rows = [["bar" if shown is bars else "missed bar", "result", "at most", ""]]
    for bar in shown:
        unit = bar["unit"]
        end = "kept" if bar["kept"] else "**missed**"
        rows.append(
            [bar["name"], f"{bar['value']:.4g} {unit}".strip(), f"{bar['limit']:g} {unit}", end]
        )
    return f"{said}:\n\n{_table(rows)}"


def bytes_of_steps(figures: dict[str, Any]) -> str:
    """Bytes moved by a training step in bfloat16, as a share of float32's."""
    records = figures["records"]
    rows = {}
    for model in dict.fromkeys(key.split("/")[0] for key in records):
        full = records.get(f"{model}/h200/float32", {}).get("bytes")
        ways = {way: records.get(f"{model}/h200/bfloat16/{way}", {}) for way in COLORS}
        if full and all("bytes" in record for record in ways.values()):
            rows[model] = {way: record["bytes"] / full for way, record in ways.items()}
    return bars_picture(
        "Bytes moved by a bfloat16 training step compiled for an H200, float32 = 1", rows
    )


def speed_on_cpu(figures: dict[str, Any]) -> str:
    """Speed-ups on a CPU, with the newest JAX in the record."""
    newest = list(figures)[-1]
    rows = {row["name"]: row["speedups"] for row in figures[newest]["rows"]}
    kept = {name: {way: speeds[way] for way in COLORS} for name, speeds in rows.items()}
    return bars_picture(f"Speed of a bfloat16 training step on a CPU, float32 = 1 ({newest})", kept)


def bars_picture(title: str, rows: dict[str, dict[str, float]]) -> str:
    """An SVG of horizontal bars, two for each row, with a line at 1.

    Args:
        title: stands above.
        rows: for each name the numbers of ``COLORS``, by name.

    Returns:
        The text of the file.
    """
    left, wide, high = 170, 440, 15
    most = max(1.0, *(number for row in rows.values() for number in row.values()))
    scale = wide / (1.05 * most)
    lines, y = [], 66
    for name, numbers in rows.items():
        lines.append(_words(left - 10, y + high, name, "end"))
        for way, color in COLORS.items():
            length = numbers[way] * scale
            size = f'width="{length:.1f}" height="{high - 3}"'
            lines.append(f'<rect x="{left}" y="{y}" {size} fill="{color}"/>')
            lines.append(_words(left + length + 5, y + high - 5, f"{numbers[way]:.2f}", size=11))
            y += high
        y += 9
    key, x = [], left
    for way, color in COLORS.items():
        key.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{color}"/>')
        key.append(_words(x + 18, 49, way))
        x += 110
    one = left + scale
    rule = f'<path d="M{one:.1f} 58V{y}" stroke="{GREY}" stroke-dasharray="3 3"/>'
    width = left + wide + 50
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 8}" '
        f'font-family="sans-serif" role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, _words(8, 22, title, size=15), *key, rule, *lines, "</svg>"]) + "\n"


def _words(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{GREY}">'
        f"{escape(text)}</text>"
    )


# By benchmark: the file in docs/, its alternative text, and the function that draws it.
PICTURES: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "painter": (
        "bytes.svg",
        "Bytes moved by training steps in bfloat16, by duotone and with dtypes set by hand",
        bytes_of_steps,
    ),
    "cpu_steps": (
        "cpu_steps.svg",
        "Speed of training steps on a CPU, by duotone and with dtypes set by hand",
        speed_on_cpu,
    ),
}


def written() -> dict[Path, str]:
    """Every file that this script writes, with its text."""
    files = {PAGE: page()}
    for benchmark, (name, _, draw) in PICTURES.items():
        data = json.loads((RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))
        files[PAGE.parent / name] = draw(data["figures"])
    return files


def main() -> int:
    """Writes the files, or says which are not up to date."""
    old = [
        path
        for path, text in written().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in old:
            print(f"{path.name} does not show what benchmarks/results say: run {__file__}")
        return int(bool(old))
    for path in old:
        path.write_text(written()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
