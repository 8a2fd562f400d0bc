"""The replicated state of a model: learning, answering, calibration, receipts."""
