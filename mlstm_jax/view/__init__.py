"""A local web page that shows how a model reads a text while you type it."""
