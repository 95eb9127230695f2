//! Active checks, on a schedule.
