"""Plans in the trainer: whether one fits this attempt, where it comes from, and what it predicted against what was measured."""
