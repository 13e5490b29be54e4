"""The file-system overlay: writes of a script land in a scratch folder."""
