"""The words control plane and data plane share: RAPJob, ops, plans, metrics, pod conventions.

Depends on pydantic and the standard library only; imports neither torch nor kubernetes.
"""
