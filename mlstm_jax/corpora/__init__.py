"""Prepare text: sources → readers → documents → an engine → writer; no jax."""
