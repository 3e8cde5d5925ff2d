"""Preprocessing at the tables' owners: raw columns travel instead of ids, and each owner makes the ids of all ranks' rows."""
