"""A worker of two, each a process: prints which steps changed nothing, and how many it counted.

``python workers.py NUMBER PORT PORT``
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportMissingModuleSource=false

from __future__ import annotations

import json
import os
import sys


def main(number: int, ports: list[str]) -> None:
    """Trains nine steps; the batch of worker 1 overflows in the first, seventh and eighth."""
    workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": number}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from tests.adapters.tensorflow_live.small import BATCH, bad, model, same_bits, step_of, wrap

    with strategy.scope():
        opt, trained = wrap(keras.optimizers.Adam(1e-2), loss_scale=64), model()
        opt.build(trained.trainable_variables)

    step = step_of(opt, trained)

    @tf.function
    def all_replicas(x, y):
        strategy.run(step, args=(x, y))

    def values() -> list:
        return [v.numpy() for v in (*trained.variables, *opt.inner_optimizer.variables)]

    skipped = []
    for step_number in range(1, 10):
        overflows = step_number in (1, 7, 8)
        before = values()
        all_replicas(bad() if overflows and number == 1 else BATCH[0], BATCH[1])
        if same_bits(before, values()):
            skipped.append(step_number)
    print(json.dumps([skipped, opt.metrics()["skipped_steps"]]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
