"""The data plane: reads events, preprocesses, trains, checkpoints. Never imports kubernetes."""
