"""Where model-written programs run."""
