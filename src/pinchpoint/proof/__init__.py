"""Proof: is a variant the same computation as its baseline, and is it better? The verb is `pinchpoint.proof.verdict.verify`."""
