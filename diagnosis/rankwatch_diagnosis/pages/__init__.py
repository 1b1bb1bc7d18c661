"""What pages share: their frame, their policy and their style."""
