"""Scan: rules that find slow, wasteful, or wrong PyTorch and JAX code in source files, one file per rule.

The rules are in a folder per family: waits/ (PP1xx), recompiles/ (PP2xx), memory/ (PP3xx), copies/ (PP4xx),
and answers/ (PP5xx). What reads, fixes, and prints is in engine/.
"""
