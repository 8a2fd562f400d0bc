"""Accuracy on the inputs that applications send, and from the feedback that they give."""
