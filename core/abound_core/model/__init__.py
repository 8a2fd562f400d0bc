"""The replicated state of a model: learning, ranking, calibration, receipts."""
