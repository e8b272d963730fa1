"""What an instructor runs: the sandbox, the judge's runner, nbgrader's two preprocessors."""
