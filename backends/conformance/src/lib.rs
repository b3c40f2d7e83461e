//! The tests in `tests/` run every backend through the checks of `dstack-backend-kit`.
