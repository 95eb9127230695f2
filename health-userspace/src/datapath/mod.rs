//! The only user of aya: load, attach, pin, adopt, read, write.

mod error;
mod load;
mod maps;
mod sys;

pub use error::DatapathError;
pub use load::{OBJECT, Sizes};

#[cfg(test)]
mod smoke {
    use super::*;
    #[test]
    fn smoke() {
        let dir = std::path::Path::new("/sys/fs/bpf/smoke");
        let pins = load::Pins::take(dir).unwrap();
        let r = load::load(&pins, &Sizes { origins: 100, frontends: 100, half_open: 4096, flows: 4096, moved: 4096 });
        match &r {
            Err(e) => { let mut s: Option<&(dyn std::error::Error)> = Some(e); while let Some(e) = s { println!("{e}"); s = e.source(); } }
            Ok(_) => println!("ok"),
        }
        std::fs::remove_dir_all(dir).ok();
        assert!(r.is_ok());
    }
}
