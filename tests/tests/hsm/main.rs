//! HSMs and what Sluice makes of them: the fault module itself first, since a check is worth no more than the fault that
//! it is shown.

mod module;
