"""RAP's Grafana boards as code. The chart ships what `python -m boards` writes."""
