"""The public Python API of `import mlstm_jax`: functions that take and return values.

The commands call these functions, and show the results. Apart from `train` and `sweep`, which set
JAX up, nothing here changes the process: no signal handler, no environment variable, no logger. One
limit is raised for good: the longest field that Python's csv module reads (`corpora/tables.py`).
"""
