"""Turn text files into a corpus on disk, and read its batches; nothing here imports jax."""
