//! The userspace half of Sluice: a shell of IO around [`health_core`].
//!
//! | module | does |
//! |---|---|
//! | [`config`] | raw TOML → checked configuration |
//! | [`probe`] | active checks, on a schedule |
//! | [`datapath`] | the only user of aya: load, attach, pin, adopt, read, write |
//! | [`act`] | carries a plan out |
//! | [`daemon`] | the loop that joins them |
//! | [`control`] | the socket that the command line talks to |
//! | [`telemetry`] | metrics, `/healthz`, logs |
//! | [`report`] | what commands print as JSON |
//! | [`cli`] | one file per subcommand |

pub mod act;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod datapath;
pub mod probe;
pub mod report;
pub mod telemetry;
