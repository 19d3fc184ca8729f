"""Generic hooks: each patches one place of torch, and is called after that place has been imported."""
