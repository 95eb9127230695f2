//! HSMs and what Sluice makes of them: the fault module itself first, since a check is worth no more than the fault that
//! it is shown.

mod module;
mod notes;
mod patience;
mod pool;
mod restarts;
mod scenes;
mod several;
mod slot;
mod solo;
mod stage;
mod together;
mod worker;
