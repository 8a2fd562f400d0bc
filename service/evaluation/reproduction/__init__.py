"""``abound reproduce``: runs the comparisons of the papers on available data sets and writes the page."""
