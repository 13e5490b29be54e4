"""The density network in its scalar and full forms, and its packaged weights."""
