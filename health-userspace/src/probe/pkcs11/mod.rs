//! `pkcs11`: HSMs, at three depths, by checks that cannot be the cause of the next outage.
//!
//! The daemon never loads a module. Each slot (an origin's module, environment and token) has one worker, a process of this
//! same program that can be killed at any time; a task owns it and climbs the ladder for all checks of that origin.
//!
//! | file | does |
//! |---|---|
//! | `protocol`, `slate` | frames between daemon and worker; the memory that says where a worker is |
//! | `worker/` | the worker: gives up its rights, loads the module, makes the calls |
//! | `spawn`, `process` | starts a worker; asks it with deadlines, kills it, reaps it |
//! | `slot`, `login`, `halt` | the ladder, its login, and what it means when it stops |
//! | `respawn` | how soon a worker follows another |
//! | `ledger` | sessions held, and left behind by killed workers |
//! | `pin`, `latch` | the PIN's way, and the guard that tries a wrong one once |
//! | `class` | `CK_RV` to classes |
//! | `judge`, `clock`, `verify` | versions and flags, the token's clock, signatures: pure |
//! | `kind` | what the schedule runs |
//! | `hub` | slots by name, alarms, and the end of all |
//! | `doctor` | `sluice pkcs11 doctor` and `unlock` |

mod class;
mod clock;
pub mod doctor;
mod halt;
mod hub;
mod judge;
mod kind;
mod latch;
mod ledger;
mod login;
mod pin;
mod process;
mod protocol;
mod respawn;
mod slate;
mod slot;
mod spawn;
mod trouble;
mod verify;
pub mod worker;

pub use hub::{Alarm, Alarms, Hub, HubError, user};
pub(super) use kind::Pkcs11Probe;
pub use protocol::{Cipher, Operation, Signing, Token};
pub use spawn::Program;
pub use verify::PinnedError;
