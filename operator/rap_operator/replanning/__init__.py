"""Replanning: measurements of a running job change its plan. Observe (`reader`), decide (`decide`, pure), apply (`apply`)."""
