"""Networks for images, built under `torch.device("meta")`."""
