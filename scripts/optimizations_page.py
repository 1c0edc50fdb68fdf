"""Writes ``docs/optimizations.md`` from the registry of optimizations and the table of devices.

python scripts/optimizations_page.py            # writes it
python scripts/optimizations_page.py --check    # fails if it is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from duotone.devices.table import TABLE  # noqa: E402
from duotone.precision.optimize.optimizations import REGISTRY, RegistryRow  # noqa: E402

PAGE = ROOT / "docs" / "optimizations.md"
_HEAD = f"""\
<!-- written by scripts/optimizations_page.py; do not edit -->
# Optimizations

An *optimization* replaces an operation with an equal form that moves fewer bytes or runs faster on
some device, or recomputes a result instead of storing it. `duotone.explain` names each one in
effect, with its reason, at the operation. `Policy(optimizations_remove={{"{REGISTRY[0].name}"}})`
or `DUOTONE_OPTIMIZATIONS_REMOVE={REGISTRY[0].name}` switches one off. [What was
measured](measured.md#optimizations) has gains; `python -m benchmarks.painter --without NAME`
compiles training steps without one.

```python
import jax, jax.numpy as jnp
import duotone

step = jax.grad(lambda w, x: jnp.sum((jax.nn.gelu(x @ w) @ w.T) ** 2))
seen = duotone.explain(step, jnp.ones((32, 64)), jnp.ones((16, 32)), dtype="float16")
print({{name for operation in seen.operations for name, reason in operation.optimizations}})
```

Each formula reads from left to right: the operation as written = the operation that runs. The
devices are the rows of `duotone/devices/table.py`:

| name | device |
| --- | --- |
"""
_DEVICES = {
    "gpu": "an NVIDIA GPU from Ampere to Hopper",
    "gpu-blackwell": "a later one",
    "gpu-other": "an earlier one, or another maker's",
    "tpu": "any TPU",
    "cpu-bfloat16": "a CPU with bfloat16 instructions, where half is bfloat16",
    "cpu-bfloat16-options": "the same, in a program compiled with `duotone.compiler_options()`",
    "cpu-amx-options": "the same, on a CPU with AMX",
    "cpu": "a CPU without such instructions, where half is bfloat16",
    "cpu-float16": "any CPU, where half is float16",
    "other": "any other platform of JAX",
}


def page() -> str:
    """Returns the whole page. A row of the table without a description raises ``KeyError``."""
    devices = "".join(f"| `{name}` | {_DEVICES[name]} |\n" for name in TABLE)
    return "\n".join([_HEAD + devices, *map(_section, REGISTRY)])


def _section(entry: RegistryRow) -> str:
    devices = ", ".join(name for name, row in TABLE.items() if entry.name in row.optimizations)
    always = " Also where nothing is half." if entry.in_float32 else ""
    return (
        f"## {entry.name}\n\n```text\n{entry.identity}\n```\n\n"
        f"Why: {entry.why}.\n\nOn: {devices}.{always} In `duotone/{entry.file}`.\n"
    )


def main() -> int:
    """Writes the page, or says whether it is up to date."""
    parser = argparse.ArgumentParser(description="The catalogue of optimizations.")
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return int(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
