"""The test runner behind `tests/run` and `.ci/run`: programs, jobs, report."""
