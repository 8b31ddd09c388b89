"""istbench: time-to-accuracy of distributed training methods, over the network you have."""

__version__ = "0.1.0"
