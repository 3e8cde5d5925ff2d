"""The training step: what ranks agree on before it, its stages, and how long each part takes."""
