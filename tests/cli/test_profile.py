"""``duotone profile``: whatever ends a script, what was seen is there and its status goes on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run
from tests.profiling.xplanes import gpu, kernel, write

LOOP = """
import os, signal, subprocess, sys
import jax, jax.numpy as jnp
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
step = jax.jit(lambda x: jnp.tanh(x @ x) * 1e-2)
x = jnp.ones((32, 32))
for _ in range(5):
    x = step(x).block_until_ready()
"""


def profiled(tmp_path: Path, source: str, *words: str) -> subprocess.CompletedProcess:
    (tmp_path / "train.py").write_text(textwrap.dedent(source))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "duotone", "profile", *words],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def written(folder: Path) -> dict:
    return json.loads((folder / "profile.json").read_text())


def test_a_script_with_options_of_its_own(tmp_path: Path) -> None:
    source = LOOP + "os.chdir('/'); print(sys.argv, __name__)\n"
    done = profiled(tmp_path, source, "--out", "seen", "train.py", "--out", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['train.py', '--out', 'x'] __main__\n"
    assert "4 of 5 counted by jit__lambda/" in done.stderr
    assert written(tmp_path / "seen")["summary"]["counted"] == 4
    with (tmp_path / "seen" / "operations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["calls"] for row in rows} == {"4"}
    assert list((tmp_path / "seen").rglob("*.xplane.pb"))


ENDS = {
    "raise ValueError('boom')": (1, "ValueError: boom"),
    "os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)": (130, "KeyboardInterrupt"),
    "os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(9)": (143, ""),
    "sys.exit(3)": (3, ""),
    "sys.exit('no more')": (1, "no more"),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_script(tmp_path: Path, end: str) -> None:
    status, says = ENDS[end]
    done = profiled(tmp_path, LOOP + end, "train.py")
    assert done.returncode == status
    assert says in done.stderr
    assert written(tmp_path / "duotone-profile")["summary"]["iterations"] == 5
    assert "duotone/cli" not in done.stderr


@pytest.mark.slow
def test_a_script_that_is_set_up_late(tmp_path: Path) -> None:
    """Catches: a profiler that sets JAX up before the script can."""
    source = """
    import jax
    jax.config.update("jax_num_cpu_devices", 2)
    import jax.numpy as jnp
    step = jax.jit(lambda x: jnp.tanh(x) * 2)
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("d",)), jax.P("d"))
    x = jax.device_put(jnp.ones((64, 64)), sharding)
    for _ in range(4):
        x = step(x).block_until_ready()
    """
    done = profiled(tmp_path, source, "train.py")
    assert done.returncode == 0, done.stderr
    found = written(tmp_path / "duotone-profile")
    assert found["summary"]["devices"] == 2
    assert {(row["device"], row["iteration"]) for row in found["iterations"]} == {
        (device, n) for device in ("CPU:0", "CPU:1") for n in range(4)
    }


@pytest.mark.slow
def test_a_script_whose_processes_do_the_work(tmp_path: Path) -> None:
    source = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])"
    done = profiled(tmp_path, source, "train.py")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert "the script started a process; the profile does not include the work there" in told
    assert "JAX compiled nothing in this process, so that nothing was profiled" in told
    assert len(written(tmp_path / "duotone-profile")["notes"]) == 2


@pytest.mark.slow
def test_a_fork_reports_nothing(tmp_path: Path) -> None:
    """Catches: a child that ends the parent's trace, or writes over its report."""
    source = LOOP + textwrap.dedent(
        """
        child = os.fork()
        if child:
            print(os.waitpid(child, 0)[1] >> 8)
        else:
            signal.alarm(60)  # a trace that is ended in a fork may wait for ever
            try:
                raise KeyError("in the child")
            finally:
                from duotone.profiling.profile import Profile
                import gc
                (profile,) = [o for o in gc.get_objects() if isinstance(o, Profile)]
                profile.finish()
                os._exit(7)
        """
    )
    done = profiled(tmp_path, source, "train.py")
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert done.stderr.count("iterations ") == 1
    assert written(tmp_path / "duotone-profile")["summary"]["iterations"] == 5


@pytest.mark.slow
def test_a_module_and_a_key(tmp_path: Path) -> None:
    done = profiled(tmp_path, LOOP, "--key-node", "lost", "-m", "train", "a")
    assert done.returncode == 0, done.stderr
    assert "the key operation lost never ran" in done.stderr
    assert written(tmp_path / "duotone-profile")["summary"]["counted"] == 1


def test_a_trace_may_stand_for_a_script(tmp_path: Path) -> None:
    events = [kernel("ampere_sgemm_128x64_tn", 10 * n, 5, "dot.1") for n in range(6)]
    made = write(tmp_path / "made.xplane.pb", gpu({"Stream #1(Compute)": events}))
    words = ["profile", "--out", str(tmp_path / "seen"), "--iter-stop", "2", str(made)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "3 of 6 counted by jit_step/dot.1" in result.stdout
    assert written(tmp_path / "seen")["summary"]["counted"] == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.py",), "there is no script train.py. For a module write: duotone profile -m"),
        (("--keynode", "x", "train.py"), "has no option --keynode: did you mean '--key-node'?"),
        (("--iter-start", "5", "--iter-stop", "2", __file__), "iter_stop is 2, before iter_start"),
        (("none.xplane.pb",), "there is no trace none.xplane.pb"),
        (("--out", __file__, __file__), "is a file. Name a folder."),
    ],
)
def test_mistakes_come_before_the_script(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(["profile", *words])
    assert ended.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())
