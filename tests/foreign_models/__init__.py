"""Models written by others and installed from PyPI, as ``module:make`` functions; see docs/foreign_models.md."""
