"""Models for others: versions published while training goes on, and a scorer that reads them."""
