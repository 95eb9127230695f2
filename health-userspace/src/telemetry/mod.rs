//! Metrics, `/healthz`, logs.
