"""The comparisons of the papers on available data sets, and the page of their results."""
