"""Programs that measure: run by hand, they print ratios."""
