"""Our own forward, in plain PyTorch; `backends` makes it fast."""
