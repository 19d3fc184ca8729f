"""The healthy engine against a plain PyTorch program of the same layout."""
