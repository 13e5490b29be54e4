"""The five systems: each subpackage has a command group (`cli.py`) and a workload."""
