//! Raw TOML to a checked configuration.
