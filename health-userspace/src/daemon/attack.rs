//! Which services are under attack: their scrubbers touch a file.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, SystemTime},
};

use health_core::{Span, Timestamp, engine::Mitigated, model::ServiceSpec};

/// Time between two looks at the files. An attack lasts longer; ten thousand services would be asked too often otherwise.
const LOOK: Span = Span::from_secs(1);

/// What the files last said.
#[derive(Debug, Default)]
pub(super) struct Files {
    looked: Timestamp,
    on: Vec<Mitigated>,
}

impl Files {
    /// Services whose file is there and was touched less than `expires` ago.
    pub(super) fn mitigated(&mut self, specs: &[ServiceSpec], now: Timestamp) -> Vec<Mitigated> {
        if self.looked == Timestamp::NEVER || now.since(self.looked) >= LOOK {
            self.looked = now;
            self.on = look(specs, SystemTime::now());
        }
        self.on.clone()
    }
}

fn look(specs: &[ServiceSpec], now: SystemTime) -> Vec<Mitigated> {
    // One file may stand for many services.
    let mut ages: BTreeMap<&str, Option<Duration>> = BTreeMap::new();
    let with_file = specs.iter().filter(|spec| !spec.policy.mitigation.file.is_empty());
    let on = with_file.filter(|spec| {
        let mitigation = &spec.policy.mitigation;
        let age = *ages.entry(&mitigation.file).or_insert_with(|| age(&mitigation.file, now));
        age.is_some_and(|age| age < Duration::from_nanos(mitigation.expires.0))
    });
    on.map(|spec| Mitigated { service: spec.id, by: "file".to_owned(), reason: spec.policy.mitigation.file.clone() })
        .collect()
}

/// Since when the file was not touched; `None`: it is not there. One that was touched in the future was touched now.
fn age(file: &str, now: SystemTime) -> Option<Duration> {
    let touched = fs::metadata(file).and_then(|data| data.modified()).ok()?;
    Some(now.duration_since(touched).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use health_core::{
        model::{Balance, Mode, ServiceId},
        policy::{Mitigation, Policy},
    };

    fn spec(id: u16, file: &str) -> ServiceSpec {
        let mitigation = Mitigation { file: file.to_owned(), expires: Span::from_secs(60), ..Mitigation::default() };
        ServiceSpec {
            id: ServiceId(id),
            name: format!("s{id}"),
            mode: Mode::Enforce,
            policy: Policy { mitigation, ..Policy::default() },
            origins: Vec::new(),
            checks: Vec::new(),
            frontends: Vec::new(),
            balance: Balance::Maglev,
        }
    }

    #[test]
    fn a_file_that_was_touched_lately_means_attack() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("shop.active");
        let file = file.to_str().expect("a path");
        let specs = [spec(1, file), spec(2, ""), spec(3, "/nowhere/at/all"), spec(4, file)];
        let on = |later: u64| -> Vec<u16> {
            let at = SystemTime::now() + Duration::from_secs(later);
            look(&specs, at).iter().map(|word| word.service.0).collect()
        };
        assert!(on(0).is_empty());
        fs::write(file, "").expect("written");
        assert_eq!(on(0), [1, 4]);
        assert_eq!(on(50), [1, 4]);
        assert!(on(70).is_empty(), "nobody touched it for a minute");
        let touched = fs::File::options().write(true).open(file).expect("it is there");
        touched.set_modified(SystemTime::now() + Duration::from_mins(1)).expect("touched");
        assert_eq!(on(70), [1, 4]);
        fs::remove_file(file).expect("removed");
        assert!(on(0).is_empty());
    }

    #[test]
    fn files_are_asked_once_a_second() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("a");
        let specs = [spec(1, file.to_str().expect("a path"))];
        let (mut files, now) = (Files::default(), Timestamp(1_000_000_000));
        assert!(files.mitigated(&specs, now).is_empty());
        fs::write(&file, "").expect("written");
        assert!(files.mitigated(&specs, now.after(Span::from_millis(900))).is_empty());
        assert_eq!(files.mitigated(&specs, now.after(LOOK)).len(), 1);
    }
}
