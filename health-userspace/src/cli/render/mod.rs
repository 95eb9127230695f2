//! Reports as text for people: worst first, why beside what, what happens next.
//!
//! Pure: time and zone are arguments.

pub mod events;
pub mod flows;
pub mod maps;
pub mod pkcs11;
pub mod probe;
pub mod status;
pub mod table;
pub mod words;
