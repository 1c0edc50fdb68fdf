"""``duotone.keras.LossScaleCallback`` on TensorFlow."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging

import numpy as np
import pytest

from duotone.errors import ArgumentError
from duotone.policy.scales import INITIAL_SCALE
from tests.adapters.tensorflow_live.small import X, Y, bad, compiled, model, wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow


def fitted(trained, callback, x=X, epochs=2):
    settings = {"batch_size": 64, "verbose": 0, "shuffle": False, "callbacks": [callback]}
    return trained.fit(x, Y, epochs=epochs, **settings).history


def test_the_scale_is_in_the_logs(tf, tmp_path, capsys):
    import keras

    import duotone.keras

    trained = compiled(wrap(keras.optimizers.SGD(1e-3)))
    callback = duotone.keras.LossScaleCallback(logdir=tmp_path)
    history = fitted(trained, callback, bad(X), epochs=2)
    skipped = history["skipped_steps"]
    assert 1 <= skipped[0] < skipped[1]
    assert history["loss_scale"] == [INITIAL_SCALE / 2.0**count for count in skipped]
    (file,) = tmp_path.glob("events*")
    assert b"duotone/loss_scale" in file.read_bytes()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("duotone:")]
    assert len(lines) == 1
    assert "in float16" in lines[0]


def test_a_stuck_scale_and_a_loss_that_is_not_finite_are_told_once(tf, caplog):
    import keras

    from duotone.keras import LossScaleCallback

    trained = compiled(wrap(keras.optimizers.SGD(1e-3), loss_scale=1.0))
    x = np.full_like(X, np.inf)
    with caplog.at_level(logging.WARNING, "duotone"):
        fitted(trained, LossScaleCallback(warn_after=3), x, epochs=4)
    lines = [record.getMessage() for record in caplog.records]
    (stuck,) = [line for line in lines if "nothing is learnt" in line]
    assert "explain_last" in stuck
    assert "duotone.blame" not in "".join(lines)
    # A warning of skipped steps at a fixed scale comes before the end of an epoch.
    assert len([line for line in lines if "loss of this epoch" in line]) <= 1


def test_a_loss_that_is_nan_in_bfloat16_is_told(tf, caplog):
    import keras

    from duotone.keras import LossScaleCallback

    trained = compiled(wrap(keras.optimizers.SGD(1e-3), "bfloat16"))
    with caplog.at_level(logging.WARNING, "duotone"):
        fitted(trained, LossScaleCallback(), bad(X), epochs=2)
    told = [r.getMessage() for r in caplog.records if "loss of this epoch" in r.getMessage()]
    assert len(told) == 1


def test_a_model_without_a_wrapped_optimizer_is_refused(tf):
    from duotone.keras import LossScaleCallback

    plain = model()
    plain.compile(optimizer="sgd", loss="mse")
    with pytest.raises(ArgumentError, match="enable_mixed_precision_graph_rewrite"):
        fitted(plain, LossScaleCallback())


def test_names_for_keras_on_jax_say_so(tf):
    import duotone.keras

    with pytest.raises(ArgumentError, match="KERAS_BACKEND=jax"):
        _ = duotone.keras.blame
    assert not hasattr(duotone.keras, "nonsense")
