"""Verification: whether a variant computes the same as its baseline, and whether it is better.

The verb is `pinchpoint.verification.verify.verify`.
"""
