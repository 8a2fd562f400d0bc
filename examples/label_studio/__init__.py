"""An ML backend for Label Studio."""
