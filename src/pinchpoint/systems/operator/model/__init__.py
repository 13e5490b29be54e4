"""The operator network, its configuration and its graphs."""
