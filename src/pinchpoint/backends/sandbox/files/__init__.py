"""The file-system overlay: redirects a script's writes to a scratch folder."""
