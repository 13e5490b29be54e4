"""Proof: is a variant the same computation as its baseline, and is it better? The verb is `pinchpoint.verification.verify.verify`."""
