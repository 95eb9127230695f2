//! Effects: what a plan asks for is done here.
