"""What a cell would need and take, before anything runs: on the meta device, with nothing allocated."""
