"""A corpus on disk, its shards, and the streams of its batches; nothing here imports jax."""
