"""Policy files: the fields of a :class:`~duotone.Policy` in TOML or JSON.

::

    painter = "mincut"                 # policy.toml
    deny_add = ["tanh"]
    keep_full = ["*/attention/*"]
    calibration = "calibration.json"   # paths are relative to the file

    [ranges]
    images = [-1, 1]

The content determines the form: JSON begins with a brace, and TOML never does.
:meth:`duotone.Policy.from_file` checks the values. ``DUOTONE_POLICY_FILE`` and
``duotone run --policy-file`` take such a file too.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from duotone.errors import PolicyError, PolicyTypeError, kind_of
from duotone.policy.calibration import Calibration
from duotone.text.suggestions import did_you_mean

_PATHS = ("log_path", "calibration")


def read_policy_file(path: Path, fields: Collection[str]) -> dict[str, Any]:
    """Returns the arguments for a policy in a file.

    Returns:
        Values by field; paths are made absolute, and a calibration is loaded.

    Raises:
        PolicyError: the file is missing, is neither TOML nor JSON, or has an unknown field.
        CalibrationError: the calibration that it names cannot be loaded.
    """
    data = _parse(path)
    for name in data:
        if name not in fields:
            meant = did_you_mean(name, fields, f"it has {', '.join(fields)}.")
            raise PolicyError(f"{path}: a policy has no field {name!r}: {meant}")
    for name in _PATHS:
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise PolicyTypeError(f"{path}: {name} is {value!r}; it takes a path, in quotes.")
        data[name] = path.parent.resolve() / Path(value).expanduser()
    if data.get("calibration") is not None:
        data["calibration"] = Calibration.load(data["calibration"])
    return data


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PolicyError(
            f"cannot read the policy file {path}: {error.strerror}. Name a TOML or JSON file with "
            "the fields of duotone.Policy."
        ) from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path} is not a policy file: it is not text.") from error
    is_json = text.lstrip()[:1] == "{" or path.suffix == ".json"
    form, load = ("JSON", json.loads) if is_json else ("TOML", tomllib.loads)
    try:
        data = load(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(
            f"{path} is not valid {form}: {error}. A policy file has lines such as "
            'deny_add = ["tanh"].'
        ) from error
    if not isinstance(data, dict):
        raise PolicyTypeError(f"{path} holds {kind_of(data)}; a policy file holds fields.")
    return data
