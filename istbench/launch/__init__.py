"""From a request to the place where its cells run."""
