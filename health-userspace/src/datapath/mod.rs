//! The only user of aya: load, attach, pin, adopt, read, write.
