"""Two minutes on two cores, on Python's own documentation; the default of `train.py`.

Command:   make quickstart, or python train.py
Hardware:  two CPU cores, about two minutes
Expected:  see README.md
"""

from mlstm_jax.quickstart import config

__all__ = ["config"]
