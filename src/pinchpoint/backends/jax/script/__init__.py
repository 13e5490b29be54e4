"""Runs an unmodified JAX script without computing anything, and books the arrays it keeps alive."""
