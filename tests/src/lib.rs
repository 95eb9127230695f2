//! Network namespaces with real servers in them.
