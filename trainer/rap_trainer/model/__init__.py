"""The model of a job: declared, initialised, sharded over the ranks, with its optimizers."""
