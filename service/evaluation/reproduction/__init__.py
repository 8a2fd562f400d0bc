"""``abound reproduce``: the comparisons of the papers, from the data sets at hand, and the page made of them."""
