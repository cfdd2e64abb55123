"""The JAX trainer: OLMo 3 in Flax NNX at any size."""
