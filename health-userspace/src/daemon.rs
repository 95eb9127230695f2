//! The loop that joins kernel, checks, judgement and operators.
