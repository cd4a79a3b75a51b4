"""Train: ``python train.py [CONFIG] [--section.field value ...]``; see ``--help``."""

import sys

from mlstm_jax.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
