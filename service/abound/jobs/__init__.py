"""Background jobs: records, queue, runner, dispatcher, and the jobs themselves."""
