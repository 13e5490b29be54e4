"""Sections of the report, one module per kind of record, found by walking this folder."""
