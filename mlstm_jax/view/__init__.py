"""A local page that shows what a model makes of a text while it is typed."""
