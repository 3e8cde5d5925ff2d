"""Element functions of the ops, one op a file of the op's stem: the Triton function and the step it is encoded as.

A step is a row of eight int64 of a device table: its code, then parameters (floats as float64 bits).
Ops that only move elements (firstx, ngram, sample) have no element function; `rap_trainer.fusion.lower` places them.
"""
