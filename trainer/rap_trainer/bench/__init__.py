"""`rap bench`: every way to train a plan, measured in one run on the same batches, each checked to learn the same."""
