"""The public Python API of `import mlstm_jax`: functions that take and return values.

The commands are thin wrappers around these functions. Nothing here changes the process: no signal
handler, no environment variable, no logger.
"""
