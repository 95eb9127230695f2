//! The socket that the command line talks to.
