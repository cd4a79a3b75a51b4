"""One process of several, for the tests: some steps, then what every one of its devices holds.

Run as ``python -m tests.training.worker CORPUS OUT.npz COORDINATOR PROCESSES INDEX DEVICES``.
"""

import sys
from pathlib import Path

from mlstm_jax import environment, programs
from mlstm_jax.config import Config, Data, Devices, Distributed, Model, Optimizer, Train

STEPS = 20


def main(corpus: str, out: str, coordinator: str, processes: str, index: str, devices: str) -> None:
    """Take the steps and write the replicas."""
    config = Config(
        model=Model(hidden=24, embedding=8),
        data=Data(corpus=corpus, batch=8, window=16, shards=16),
        optimizer=Optimizer(learning_rate=5e-3),
        train=Train(log_every=5),
        devices=Devices(virtual_cpu=int(devices)),
        distributed=Distributed(
            coordinator=coordinator if int(processes) > 1 else None,
            processes=int(processes),
            index=int(index),
        ),
    )
    programs.cache_programs()
    environment.prepare(config.devices)

    import jax
    import numpy as np

    from mlstm_jax.data.corpus import open_corpus
    from mlstm_jax.distributed.cluster import Cluster
    from mlstm_jax.model.language_model import LanguageModel
    from mlstm_jax.training import optimizer, parallel, schedule
    from mlstm_jax.training.begin import fresh_state
    from mlstm_jax.training.phases import train_stream
    from mlstm_jax.training.step import make_train_step

    with Cluster(config.distributed) as cluster, parallel.started(cluster, config.devices) as all_:
        model = LanguageModel(config.model, config.precision)
        rate = schedule.learning_rate(config.optimizer, config.data.batch, 200)
        tx = optimizer.build(config.optimizer, config.model, rate)
        step = all_.map(make_train_step(config, model, tx, rate, parallel.AXIS), donate=(0, 1))
        stream = train_stream(config, open_corpus(Path(corpus)))
        rows = all_.rows(config.data.batch)
        state = all_.replicate(fresh_state(config, model, tx, None))
        first = jax.tree.map(lambda x: x[rows], model.init_carry(config.data.batch))
        carry = all_.split_rows(first)
        go_on = all_.replicate(np.float32(0))
        losses = []
        for number in range(STEPS):
            batch = all_.split_rows(stream.batch(number, rows))
            state, carry, metrics = step(state, carry, batch, go_on)
            losses.append(all_.unreplicate(metrics).loss)
        leaves = {str(n): np.asarray(x) for n, x in enumerate(jax.tree.leaves(state.params))}
        np.savez(out, losses=np.array(losses), rows=np.arange(8)[rows], **leaves)


if __name__ == "__main__":
    main(*sys.argv[1:])
