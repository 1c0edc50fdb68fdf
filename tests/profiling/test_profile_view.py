"""A profile as text."""

from __future__ import annotations

from pathlib import Path

from duotone.profiling.profile_record import (
    DtypeRow,
    KernelRow,
    OperationRow,
    ProfileRecord,
    ProfileSummary,
    ScopeRow,
)
from duotone.profiling.profile_view import ProfileView
from duotone.text.columns import plain


def scope(name: str, share: float) -> ScopeRow:
    depth = len(name.split("/")) if name else 0
    return ScopeRow(name, depth, 4, share * 10, share, 0.0, 2.0, 1.0, 0.0)


def record() -> ProfileRecord:
    return ProfileRecord(
        ProfileSummary(
            "GPU",
            2,
            "jit_step/fusion.1",
            10,
            9,
            0.01,
            0.008,
            0.2,
            3,
            1.5,
            1e9,
            0.004,
            0.002,
            0.001,
            2 / 3,
            "jax 0.12.0",
        ),
        operations=(
            OperationRow(
                "jit_step",
                "dot.1",
                "dot",
                "encoder",
                "dot_general",
                "/a/b/c.py:3",
                "bf16×bf16→f32",
                4,
                0.1,
                0.5,
                9.0,
                True,
                0.05,
                0.0,
            ),
        ),
        kernels=tuple(
            KernelRow(f"kernel_{use}" * 12, 1, 4, 0.1, 0.5, 0.1, use)
            for use in ("yes", "no", "unknown")
        ),
        scopes=(
            scope("encoder", 0.8),
            *(scope(f"encoder/layer_{n}", 0.8 / 30) for n in range(30)),
            scope("", 0.1),
            scope("tiny", 0.0001),
        ),
        dtypes=(DtypeRow("f32", 1, 0.1, 0.5, 0.0, 0.0, 0.0, 0.0),),
        advice=("do this " * 30,),
        notes=("[red]not markup[/red]",),
    )


def test_it_fits_eighty_columns_and_says_what_matters() -> None:
    text = plain(ProfileView(record(), Path("out")))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Tensor Cores  67% of the eligible time (50% of the busy time); 25% not known" in text
    assert "device idle   20.0%" in lines
    assert "[red]not markup[/red]" in text
    assert sum("kernel_" in line for line in lines) == 3
    assert [line[-3:].strip() for line in lines if line.startswith("kernel_")] == ["yes", "no", "?"]
    (row,) = [line for line in lines if line.startswith("encoder/dot_general")]
    assert row.split()[-1] == "50%"
    assert "tensorboard --logdir out" in text


def test_scopes_are_shown_as_deep_as_fits() -> None:
    text = plain(ProfileView(record()))
    assert "layer_3" not in text
    assert "… 31 more" in text
    assert "(no scope)" in text
    assert "tiny" not in text


def test_nothing() -> None:
    assert plain(ProfileView(ProfileRecord(ProfileSummary()))) == "profile: nothing ran on a device"
