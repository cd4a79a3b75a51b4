"""One process of several that meet, without JAX, for the tests of how they do.

Run as ``python -m tests.distributed.meeting COORDINATOR PROCESSES INDEX SECONDS [HOLD]``: it waits
so many seconds for the others, says who is there, and stays for HOLD more.
"""

import sys
import time

from mlstm_jax.config import Distributed
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import KnownError


def main(coordinator: str, processes: str, index: str, seconds: str, hold: str = "0") -> None:
    """Meet the others, and end as the command does."""
    try:
        with Cluster(
            Distributed(
                coordinator=coordinator,
                processes=int(processes),
                index=int(index),
                timeout_seconds=float(seconds),
            )
        ) as cluster:
            print(f"met {cluster.gather(cluster.index)} at {cluster.first_host}", flush=True)
            time.sleep(float(hold))
    except KnownError as error:
        print(f"mlstm-jax train: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
