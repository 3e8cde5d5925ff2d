"""Sources of events: what all of them offer the training loop."""
