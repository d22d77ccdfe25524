"""Experiments over models, data and measures: training, comparing, using a trained model."""
