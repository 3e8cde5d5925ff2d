"""A Kafka topic as a source of training rows: `source.py` is the way in, `reader.py` runs in a process of its own."""
