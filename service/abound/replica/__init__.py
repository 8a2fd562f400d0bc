"""One serving process: following the log, health, loaded versions, rankers, memory budget."""
