"""Image folders, procedural cars and training patches."""
