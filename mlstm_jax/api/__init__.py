"""What `import mlstm_jax` gives: functions that take and return values.

The commands are thin shells around them. Nothing here changes the process: no signal handler, no
environment variable, no logger.
"""
