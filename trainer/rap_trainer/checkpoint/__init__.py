"""Checkpoints: the whole state of a job as one atomic, verified, fenced artefact on a shared file system."""
