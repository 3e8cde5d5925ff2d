"""Pure search over mappings and schedules: no clock, no randomness, no I/O."""
