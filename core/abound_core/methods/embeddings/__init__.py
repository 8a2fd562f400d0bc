"""Methods that embed labels or instances."""
