"""Benchmarks: the operator, its accuracy and the encoder beside a copy and beside other code."""
