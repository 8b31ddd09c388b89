"""Networks, built under `torch.device("meta")`."""
