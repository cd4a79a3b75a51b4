"""From files of text to a corpus on disk and its batches; nothing here imports jax."""
