"""The control plane: observe, decide, apply. Never imports torch."""
