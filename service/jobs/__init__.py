"""Background jobs: records, queue, runner, supervisor, and the jobs themselves."""
