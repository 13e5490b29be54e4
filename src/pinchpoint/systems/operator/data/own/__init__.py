"""Datasets of a user's own files: finding, checking and converting cases."""
