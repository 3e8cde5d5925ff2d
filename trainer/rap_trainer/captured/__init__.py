"""The captured runtime: the whole training step, next batch's preprocessing included, in CUDA graphs."""
