"""Pure search over mappings and schedules: no clock, no randomness, no I/O.

Roles: enumerate (`enumerate.py`), estimate (`cost.py`, `loads.py`), propose (`propose.py`), place (`place.py`),
rate (`rate.py`); `search.Planner` joins them and `explain.plan_of` makes a plan of the result.
"""
