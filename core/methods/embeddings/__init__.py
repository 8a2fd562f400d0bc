"""Methods that embed labels."""
