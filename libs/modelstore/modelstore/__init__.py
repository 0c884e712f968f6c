"""Where model folders come from, for every service that loads a model."""
