"""The seams to the frameworks, imported late."""
