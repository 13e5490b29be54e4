"""One module per kind of record; the page finds them by walking this folder."""
