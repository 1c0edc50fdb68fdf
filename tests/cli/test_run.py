"""``duotone run``: the script sees what it would under python; its Keras models are rewritten."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SWITCHES = ("DUOTONE_", "TF_ENABLE_AUTO_MIXED_PRECISION")

KERAS = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"  # after duotone's start, before Keras'
    import sys
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.train_on_batch(np.ones((8, 4), "float32"), np.ones((8, 1), "float32"))
    print(type(model.optimizer).__module__.split(".")[0], getattr(model.optimizer, "half", None))
    print(sys.argv[1:])
"""


def run(tmp_path: Path, source: str, *words: str, **environ: str) -> subprocess.CompletedProcess:
    (tmp_path / "train.py").write_text(textwrap.dedent(source))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(SWITCHES)}
    inherited.pop("KERAS_BACKEND", None)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "duotone", "run", *words],
        cwd=tmp_path,
        env={**inherited, "JAX_PLATFORMS": "cpu", **environ},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def test_a_keras_script_is_rewritten_without_a_change_of_its_source(tmp_path):
    done = run(tmp_path, KERAS, "--dtype", "float16", "train.py", "--epochs", "3", "--dtype", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["duotone float16", "['--epochs', '3', '--dtype', 'x']"]


SAYS = """
    import jax.numpy as jnp, optax, duotone
    opt = duotone.optimizer_from_environment(optax.sgd(0.1), dtype="float16")
    state = opt.find_state(opt.init(jnp.ones(2)))
    print(type(state.loss_scale).__name__, float(state.loss_scale.value))
    print(duotone.Policy(deny_add=["erf"]).merged_with_environment().describe())
"""


def test_the_loss_scale_the_policy_file_and_the_painter(tmp_path):
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "policy.toml").write_text('deny_add = ["tanh"]\npainter = "mincut"')
    words = (
        "--loss-scale",
        "64",
        "--policy-file",
        "settings/policy.toml",
        "--painter",
        "tensorflow",
    )
    source = "import os; os.chdir('/')\n" + textwrap.dedent(SAYS)
    done = run(tmp_path, source, *words, "train.py")
    scale, policy = done.stdout.splitlines()
    assert scale == "FixedLossScale 64.0"
    assert policy.startswith(
        "policy: painter tensorflow; deny list + erf, tanh (partly from policy file"
    )
    assert done.stderr == ""


@pytest.mark.slow
def test_the_loss_scale_of_keras_models(tmp_path):
    source = textwrap.dedent(KERAS) + "print(model.optimizer.metrics()['loss_scale'])\n"
    done = run(tmp_path, source, "--dtype", "float16", "--loss-scale", "64", "train.py")
    assert float(done.stdout.splitlines()[-1]) == 64, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--loss-scale", "fixed"),
            "error: --loss-scale fixed: it takes dynamic, none or a number",
        ),
        (("--loss-scale", "0"), "error: --loss-scale 0: it takes dynamic, none or a number"),
        (("--policy-file", "none.toml"), "cannot read the policy file"),
        (("--policy-file", "policy.toml"), "has no field 'dney_add': did you mean 'deny_add'?"),
        (("--painter", "van Gogh"), "van Gogh"),
        (("--polcy-file", "x"), "has no option --polcy-file: did you mean '--policy-file'?"),
    ],
)
def test_bad_options_come_before_the_script(tmp_path, words, says):
    (tmp_path / "policy.toml").write_text("dney_add = []")
    done = run(tmp_path, "print('began')", *words, "train.py")
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in " ".join(done.stderr.split())


def test_a_loss_scale_that_has_no_effect_is_reported(tmp_path):
    variable = {"TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "1"}
    done = run(tmp_path, SAYS, "--loss-scale", "64", "train.py", **variable)
    assert done.stdout.splitlines()[0] == "NoLossScale 1.0"
    assert "note: --loss-scale 64 has no effect" in done.stderr


@pytest.mark.slow
def test_who_chose_by_variable_is_not_overruled(tmp_path):
    """Catches: `duotone run` that switches loss scaling on where only rewriting was asked for."""
    variable = {"TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "1"}
    done = run(tmp_path, KERAS, "--dtype", "float16", "train.py", **variable)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "keras None"


def test_the_script_is_main_and_finds_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("ANSWER = 42\n")
    source = "import sys, neighbour; print(__name__, __file__, neighbour.ANSWER, sys.argv)\n"
    done = run(tmp_path, source, str(tmp_path / "train.py"))
    assert done.stdout.strip() == f"__main__ {tmp_path}/train.py 42 ['{tmp_path}/train.py']"
    assert "nothing to switch on" in done.stderr


def test_the_script_is_written_as_it_was_typed_and_its_file_is_found_from_everywhere(tmp_path):
    """Catches: a relative ``__file__``, lost once the script has changed its folder."""
    source = "import os, sys; os.chdir('/'); print(__file__, sys.argv)"
    done = run(tmp_path, source, "./train.py")
    assert done.stdout.strip() == f"{tmp_path}/train.py ['./train.py']", done.stderr


def test_the_script_sets_jax_up(tmp_path):
    """Catches: JAX imported before the script, whose JAX_… variables then say nothing."""
    source = """
        import os
        os.environ["JAX_ENABLE_X64"] = "1"
        import jax
        print(jax.config.jax_enable_x64)
    """
    assert run(tmp_path, source, "train.py").stdout.strip() == "True"


def test_what_a_script_starts_with_spawn_finds_its_functions(tmp_path):
    source = """
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """
    assert run(tmp_path, source, "train.py").stdout.strip() == "[2, 4]"


@pytest.mark.slow
def test_a_script_that_looks_first_whether_keras_is_there(tmp_path):
    source = "import importlib.util; importlib.util.find_spec('keras')\n" + textwrap.dedent(KERAS)
    done = run(tmp_path, source, "--dtype", "float16", "train.py")
    assert done.stdout.splitlines()[0] == "duotone float16", done.stderr


def test_it_shows_what_was_rewritten(tmp_path):
    source = """
        import sys, jax.numpy as jnp, optax, duotone
        if len(sys.argv) > 1:
            import logging
            logging.basicConfig(format="own: %(message)s")
        def loss(w): return jnp.sum((w @ w) ** 2)
        opt = duotone.optimizer_from_environment(optax.sgd(0.1), dtype="float16")
        w = jnp.ones((8, 8))
        opt.minimize(loss, w, opt.init(w))
    """
    for arguments, start in (([], "duotone: "), (["own"], "own: ")):
        done = run(tmp_path, source, "train.py", *arguments)
        (line,) = [line for line in done.stderr.splitlines() if "FLOPs in half" in line]
        assert line.startswith(f"{start}value_and_grad_of_loss: float16 on cpu"), done.stderr


def test_a_module(tmp_path):
    done = run(tmp_path, "import sys; print(__name__, sys.argv[1:])", "-m", "train", "a", "-b")
    assert done.stdout.strip() == "__main__ ['a', '-b']"


def test_an_optimizer_of_the_script(tmp_path):
    source = """
        import jax.numpy as jnp, optax, duotone
        opt = duotone.optimizer_from_environment(optax.sgd(0.1), dtype="float16")
        print(type(opt.init(jnp.ones(2)).loss_scale).__name__)
    """
    done = run(tmp_path, source, "train.py")
    assert done.stdout.strip() == "DynamicLossScale", done.stderr
    assert "nothing to switch on" not in done.stderr


def test_there_is_no_such_script(tmp_path):
    done = run(tmp_path, "", "tain.py")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: there is no script tain.py. For a module write: duotone run -m tain.py"
    )


@pytest.mark.parametrize(
    ("source", "status", "shown"),
    [
        ("open('nowhere.txt')", 1, "train.py"),
        ("import duotone; duotone.Policy(level='FAST')", 1, "train.py"),
        ("input()", 1, "EOFError: EOF when reading a line"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise SystemExit(7)", 7, ""),
    ],
)
def test_an_error_of_the_script_is_its_own(tmp_path, source, status, shown):
    done = run(tmp_path, source, "train.py")
    assert done.returncode == status
    assert shown in done.stderr
    assert ("Traceback" in done.stderr) == bool(shown)
    assert "runpy" not in done.stderr


def test_an_error_of_the_script_goes_to_its_own_hook(tmp_path):
    source = "import sys; sys.excepthook = lambda kind, *_: print('hook', kind.__name__); 1 / 0"
    done = run(tmp_path, source, "train.py")
    assert (done.returncode, done.stdout.strip()) == (1, "hook ZeroDivisionError")


@pytest.mark.parametrize("name", ["tain", "tain.more", "train.more"])
def test_there_is_no_such_module(tmp_path, name):
    done = run(tmp_path, "", "-m", name)
    assert done.returncode == 2
    assert f"error: there is no module {name} in {tmp_path}" in done.stderr


def test_a_package_that_does_not_import_says_why(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import not_there\n")
    done = run(tmp_path, "", "-m", "package.train")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'not_there'")


def test_a_bad_value_of_a_switch(tmp_path):
    done = run(tmp_path, "", "train.py", DUOTONE_ENABLE="perhaps")
    assert done.returncode == 2
    assert "environment variable DUOTONE_ENABLE is 'perhaps'" in done.stderr
