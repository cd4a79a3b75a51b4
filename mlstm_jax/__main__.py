"""`python -m mlstm_jax COMMAND ...`, for a checkout that is not installed."""

from mlstm_jax.cli import main

main()
